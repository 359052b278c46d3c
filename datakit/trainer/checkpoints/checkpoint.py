"""Writes checkpoints in the background, commits them last, and restores the newest valid one.

    <run>/checkpoints/step-000000400/state/...       orbax's files, each array sharded as on the devices
                                     commit.json     the marker, written last: step, run, mixture, files and checksums
    <temporary>/<same names>                         rolling checkpoints, in storage that deletes old files

A rolling checkpoint is written every few minutes and the last two are kept. The final checkpoint, and one every
`keep_every` steps if that is set, are permanent. A new checkpoint is committed before an older one is removed, and a
checkpoint's marker is removed before its files. A directory is ignored if its name does not match, the marker is
missing, a file is missing or too short, or a checksum is wrong: the next older checkpoint is used, with a warning. So
the last good checkpoint survives a kill at any moment.

Saving costs the training loop one copy to host memory; the rest runs in the background. Restoring works on any number
of devices: orbax reads each array into the requested sharding. Checksums cost one more read of the restored files.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import msgspec
import orbax.checkpoint as ocp
import xxhash
from etils import epath

from datakit.errors import CheckpointError, UsageError
from datakit.storage import urls
from datakit.trainer.checkpoints.compatibility import check_fit
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import is_first

FORMAT = "datakit.checkpoint/1"
MARKER = "commit.json"
SET_ASIDE = "set-aside.json"  # the marker's name once a later start has passed over the checkpoint
STATE = "state"
NAME = re.compile(r"step-(\d{9,})")
HASH_CHUNK = 4 << 20  # bytes per read; larger chunks are not faster
Say = Callable[[str], None]  # shows a line to the user


@dataclass(frozen=True)
class Checkpoints:
    """When and where to save. Without `temporary_root`, rolling checkpoints are stored next to the permanent ones."""

    interval_minutes: float = 10.0
    keep_temporary: int = 2
    keep_every: int | None = None  # training steps between permanent checkpoints
    temporary_root: str | None = None
    load: bool | None = None  # True: fail if there is none; False: start afresh; None: resume if there is one

    def __post_init__(self) -> None:
        if not self.interval_minutes >= 0:
            raise UsageError(f"checkpoint.interval_minutes is {self.interval_minutes}; it must be 0 or more")
        if self.keep_temporary < 1:
            raise UsageError("checkpoint.keep_temporary must be at least 1: without a checkpoint, a run cannot resume")
        if self.keep_every is not None and self.keep_every < 1:
            raise UsageError(f"checkpoint.keep_every is {self.keep_every}; use at least 1 step, or leave it out")
        root = self.temporary_root
        if root is not None and urls.is_local(root) and not os.path.isabs(os.path.expanduser(root)):
            raise UsageError(
                f"checkpoint.temporary_root is {root!r}; give an absolute path or a URL, "
                "so that the run finds its checkpoints from any working directory"
            )


class Marker(msgspec.Struct, frozen=True):
    """Contents of `commit.json`."""

    step: int
    run: str  # the run's fingerprint
    mixture: dict[str, Any]  # the loader's description
    counts: dict[str, int]  # tokens and sequences so far
    norms: dict[str, float]  # of the parameters at the start of the run
    permanent: bool
    files: dict[str, tuple[int, str]]  # relative path: (bytes, xxh3-128)
    origin: dict[str, Any] | None = None  # the checkpoint of another run that this run started from
    format: str = FORMAT


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with a readable marker."""

    path: epath.Path
    marker: Marker

    def damage(self, checksums: bool) -> str | None:
        """Describe the first damaged file, or return None. With `checksums`, read and hash every file."""
        for name, (length, xxh3) in self.marker.files.items():
            file = self.path / name
            if not file.exists():
                return f"{name} is missing"
            if file.stat().length != length:
                return f"{name} has {file.stat().length} bytes instead of {length}"
            if checksums and _hash(file) != xxh3:
                return f"{name} does not match its checksum"
        return None

    def named(self) -> dict[str, Any]:
        """Return the checkpoint's identity: path, training step and hash of its marker."""
        return {"checkpoint": str(self.path), "step": self.marker.step, "marker": _hash(self.path / MARKER)}


def step_folders(folder: str) -> Iterator[tuple[int, epath.Path]]:
    """Yield (step, path) of every directory with a checkpoint's name, complete or not, in order of steps."""
    place = epath.Path(folder)
    for path in sorted(place.glob("step-*")) if place.exists() else []:
        match = NAME.fullmatch(path.name)
        if match:
            yield int(match[1]), path


def candidates(folders: list[str], say: Say) -> list[Candidate]:
    """Return all checkpoints in these folders that seem complete, newest first; checksums are not verified."""
    read = [candidate_at(path, say) for folder in folders for _, path in step_folders(folder)]
    found = [candidate for candidate in read if candidate is not None]
    return sorted(found, key=lambda one: (one.marker.step, one.marker.permanent), reverse=True)


def candidate_at(path: epath.Path, say: Say) -> Candidate | None:
    """Return the checkpoint in a directory if it seems complete, otherwise None; warn unless it was set aside."""
    try:
        marker = msgspec.json.decode((path / MARKER).read_bytes(), type=Marker)
    except FileNotFoundError:
        if not (path / SET_ASIDE).exists():
            say(f"warning: {path} was never finished; ignored")
        return None
    except msgspec.DecodeError as error:
        say(f"warning: {path / MARKER} does not parse ({error}); ignored")
        return None
    if marker.format != FORMAT:
        say(f"warning: {path} has format {marker.format!r}, but this version reads {FORMAT!r}; ignored")
        return None
    candidate = Candidate(path, marker)
    damage = candidate.damage(checksums=False)
    if damage:
        say(f"warning: {path} is damaged ({damage}); ignored")
        return None
    return candidate


def restore(candidate: Candidate, like: Tree, whole: bool = True) -> Tree:
    """Restore a state; unless `whole`, only the parts in `like`, e.g. "params" and "model", from any optimizer.

    Each leaf of `like` is an array, or a ShapeDtypeStruct with a sharding. Raises CheckpointError if the checkpoint
    comes from a different model or, for a whole state, a different optimizer.
    """
    place = candidate.path / STATE
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        check_fit(checkpointer.metadata(place).item_metadata.tree, like, whole, str(candidate.path))
        arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
        wanted = ocp.args.PyTreeRestore(item=abstract, restore_args=arguments, partial_restore=True)
        return checkpointer.restore(place, args=wanted)


@dataclass
class Writer:
    """Saves the states of one run, one at a time."""

    settings: Checkpoints
    permanent: str
    temporary: str
    run: str
    say: Say
    _saver: ocp.AsyncCheckpointer = field(init=False)
    _thread: threading.Thread | None = None
    _failure: BaseException | None = None
    _saved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def due(self, step: int) -> bool:
        """Return True if the state after `step` steps should be saved now."""
        return self._kept(step) or time.monotonic() - self._saved_at >= 60 * self.settings.interval_minutes

    def _kept(self, step: int) -> bool:
        return self.settings.keep_every is not None and step % self.settings.keep_every == 0

    def save(self, state: Tree, marker: Marker) -> None:
        """Wait for the previous save to finish, then start this one. The state must be finite."""
        self.wait()
        permanent = marker.permanent or self._kept(marker.step)
        marker = msgspec.structs.replace(marker, run=self.run, permanent=permanent)
        path = epath.Path(self.permanent if permanent else self.temporary) / f"step-{marker.step:09d}"
        if permanent and candidate_at(path, lambda _: None) is not None:
            return  # committed by an earlier start of the run
        if is_first():
            (path / MARKER).unlink(missing_ok=True)
            (path / SET_ASIDE).unlink(missing_ok=True)
        self._saver.save(path / STATE, args=ocp.args.StandardSave(state), force=True)
        self._saved_at = time.monotonic()
        self._thread = threading.Thread(target=self._commit, args=(path, marker), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the current save is committed. Raises CheckpointError if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(f"a checkpoint could not be written: {failure}") from failure

    def close(self) -> None:
        """Wait for the current save, and stop the threads."""
        try:
            self.wait()
        finally:
            self._saver.close()

    def _commit(self, path: epath.Path, marker: Marker) -> None:
        try:
            self._saver.wait_until_finished()
            if is_first():
                commit(path, marker)
                self._prune(marker.step)
        except Exception as error:  # noqa: BLE001 - raised by `wait` in the main thread
            self._failure = error

    def _prune(self, step: int) -> None:
        """Remove all rolling checkpoints but the newest, and all unfinished checkpoints before `step`."""
        found = [one for one in candidates([self.temporary], lambda _: None) if not one.marker.permanent]
        for candidate in found[self.settings.keep_temporary :]:
            (candidate.path / MARKER).unlink(missing_ok=True)  # first, so that a partly removed checkpoint is ignored
            candidate.path.rmtree()
        for folder in {self.permanent, self.temporary}:
            for number, path in step_folders(folder):
                if number < step and not any((path / name).exists() for name in (MARKER, SET_ASIDE)):
                    path.rmtree()


def commit(path: epath.Path, marker: Marker) -> None:
    """Write the marker of a finished state, with the size and checksum of each file."""
    files = {str(file.relative_to(path)): (file.stat().length, _hash(file)) for file in _files(path / STATE)}
    data = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(marker, files=files)), indent=1)
    unfinished = path / f".{MARKER}.tmp"
    unfinished.write_bytes(data)
    unfinished.rename(path / MARKER)


def _files(folder: epath.Path) -> list[epath.Path]:
    found: list[epath.Path] = []
    for entry in sorted(folder.iterdir()):
        found.extend(_files(entry) if entry.is_dir() else [entry])
    return found


def _hash(file: epath.Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while chunk := opened.read(HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
