"""Lists checkpoints, reads their markers, and warns about unfinished and damaged ones, which are then ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from etils import epath

from datakit.errors import NotFoundError, UnreadableError
from datakit.storage import atomic, urls
from datakit.storage.json_data import decode
from datakit.storage.manifest import refuse_newer

FORMAT = "datakit.checkpoint/1"
MARKER = "commit.json"
# When the run starts again and sets a checkpoint aside, the marker is renamed to this.
SET_ASIDE = "set-aside.json"
NAME = re.compile(r"step-(\d{9,})")
Say = Callable[[str], None]  # shows one line of text to the user


class Marker(msgspec.Struct, frozen=True):
    """The contents of `commit.json`, the marker of a complete checkpoint."""

    step: int
    run: str  # the run's fingerprint
    mixture: dict[str, Any]  # the mixture as the loader describes it (`BatchSource.record`)
    counts: dict[str, int]  # numbers of tokens and sequences trained on so far
    norms: dict[str, float]  # norms of the parameters at the start of the run
    permanent: bool
    files: dict[str, tuple[int, str]]  # relative path -> (size in bytes, xxh3-128 digest)
    origin: dict[str, Any] | None = None  # identity of another run's checkpoint, if this run started from one
    format: str = FORMAT


@dataclass(frozen=True)
class Candidate:
    """A checkpoint whose marker has been read."""

    path: epath.Path
    marker: Marker

    def damage(self, checksums: bool) -> str | None:
        """Return a description of the first damaged file, if any. Compare checksums only if `checksums` is true."""
        for name, (length, xxh3) in self.marker.files.items():
            if not self._contains(name):
                return f"it names {name!r}, which is not below it"
            file = self.path / name
            if not file.exists():
                return f"{name} is missing"
            if file.stat().length != length:
                return f"{name} has {file.stat().length} bytes instead of {length}"
            if checksums and file_hash(file) != xxh3:
                return f"{name} does not match its checksum"
        return None

    def _contains(self, name: str) -> bool:
        """Return True if a name leads to a place below the checkpoint's directory, even after links have been resolved.
        The marker may come from a stranger, and the files that it names are opened.
        """
        if not urls.is_below(name):
            return False
        place = str(self.path)
        return not urls.is_local(place) or Path(place, name).resolve().is_relative_to(Path(place).resolve())

    def named(self) -> dict[str, Any]:
        """Return the checkpoint's identity: path, training step and hash of its marker."""
        return {"checkpoint": str(self.path), "step": self.marker.step, "marker": file_hash(self.path / MARKER)}


def step_folders(folder: str) -> Iterator[tuple[int, epath.Path]]:
    """Yield (step, path), in step order, of every directory named like a checkpoint, even if it is incomplete."""
    place = epath.Path(folder)
    for path in sorted(place.glob("step-*")) if place.exists() else []:
        match = NAME.fullmatch(path.name)
        if match:
            yield int(match[1]), path


def candidates(folders: list[str], say: Say) -> list[Candidate]:
    """Return all seemingly complete checkpoints in these folders, newest first, without verifying checksums."""
    read = [candidate_at(path, say) for folder in folders for _, path in step_folders(folder)]
    found = [candidate for candidate in read if candidate is not None]
    return sorted(found, key=lambda one: (one.marker.step, one.marker.permanent), reverse=True)


def candidate_at(path: epath.Path, say: Say) -> Candidate | None:
    """Return the checkpoint in a directory. If it is not valid, return None, and warn unless it was set aside. Raises
    NewerFormatError if a newer version of datakit wrote the checkpoint: a run that ignored it would set it aside and
    resume from an older checkpoint.
    """
    try:
        if urls.is_local(str(path)):
            # Called only for its error if the marker is not a regular file: reading a named pipe would never end.
            urls.size(str(path / MARKER))
        data = (path / MARKER).read_bytes()
    except (FileNotFoundError, NotFoundError):
        if not (path / SET_ASIDE).exists():
            say(f"warning: {path} was never finished; ignored")
        return None
    except UnreadableError as error:
        say(f"warning: {error}; {path} is ignored")
        return None
    refuse_newer(data, str(path / MARKER), FORMAT)
    try:
        marker = decode(data, Marker)
    except msgspec.DecodeError as error:
        say(f"warning: {path / MARKER} does not parse ({error}); ignored")
        return None
    if marker.format != FORMAT:
        say(f"warning: {path} has format {marker.format!r}, but this version reads {FORMAT!r}; ignored")
        return None
    named = NAME.fullmatch(path.name)
    if marker.step < 0 or (named and int(named[1]) != marker.step):
        say(f"warning: {path} states that it is of step {marker.step}; ignored")
        return None
    candidate = Candidate(path, marker)
    damage = candidate.damage(checksums=False)
    if damage:
        say(f"warning: {path} is damaged ({damage}); ignored")
        return None
    return candidate


def file_hash(file: epath.Path) -> str:
    """Return the xxh3-128 digest of a file in any storage."""
    with file.open("rb") as opened:
        return atomic.hash_open(cast(BinaryIO, opened))[0]
