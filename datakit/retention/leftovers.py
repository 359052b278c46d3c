"""Decides which files and unfinished steps in a root are leftovers of killed runs, and finds and removes them.

    temporary files    not locked; if this process might not see the owner's lock, also older than the age limit
    exchange files     of a finished step whose run was killed after it wrote the manifest and before the cleanup
    unfinished steps   directories with a ledger but no manifest that have not changed within the age limit, in whose
                       ledger no driver holds a lock, and that no live lease names
    rotated events     `events-00001.jsonl` and the like, in a log that has not changed within the age limit (a live run
                       writes to its log every 30 seconds); `events.jsonl`, with the first and the last events, is kept

The output of finished steps is never touched, and neither is anything that datakit did not create: a step's directory
is recognized by its name and its ledger (or its `partial.json`), a temporary file by the form of its name. A directory
with a temporary name is a step whose removal was interrupted. A resumed run can continue an unfinished step, so only
old unfinished steps are listed. To remove an unfinished step, datakit first renames it and then checks once more
whether a driver is working on it; if so, the step is kept. Ages are measured by the clock of the root's disk or store
(`store_clock.py`), because the clocks of this machine and of the machines that wrote the ledgers may be wrong.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from datakit.engine.ledger.ledger import FOLDER as LEDGER
from datakit.engine.observe.event_file import ROTATED
from datakit.engine.scheduler.finish import EXCHANGE_FOLDER
from datakit.pipeline.root_layout import RUNS, SOURCES, STEP_NAME
from datakit.retention.inventory import is_inside, require_root, step_of
from datakit.storage import atomic, locks, removal, stale_files, store_clock, urls
from datakit.storage.io_errors import storage_errors
from datakit.storage.manifest import FILE_NAME, PARTIAL_NAME
from datakit.storage.urls import FileInfo

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """A file or directory that can be removed, its size in bytes, and why it can be removed."""

    url: str
    bytes: int
    why: str


def find_leftovers(
    root: str, age_seconds: float = DAY_SECONDS, leased: Collection[str] = frozenset()
) -> list[Leftover]:
    """Return everything in `root` that can be removed. Raises InputError if the root does not exist.

    age_seconds: the minimum time since the last change to an unfinished step, to a log with rotated files, or to a
    temporary file whose lock this process might not see. leased: the paths of steps that are kept.
    """
    root = require_root(root)
    limit, listed = _AgeLimit(root, age_seconds), urls.listing(root)
    steps = [(step, files) for step, files in _steps(listed).items() if step not in leased]
    found = [leftover for step, files in steps for leftover in _step_leftovers(root, step, files, limit)]
    found += [leftover for run, files in _logs(listed).items() for leftover in _rotated(root, run, files, limit)]
    gone = tuple(f"{leftover.url}/" for leftover in found)
    temporary = (entry for entry in _temporary_files(root, limit) if not entry.url.startswith(gone))
    return sorted([*found, *temporary], key=lambda leftover: leftover.url)


def remove_leftovers(root: str, found: list[Leftover]) -> None:
    """Remove files and directories that `find_leftovers` has returned, unless a link now leads to them."""
    for leftover in found:
        path, folder = Path(leftover.url), urls.parent(leftover.url).removeprefix(root).removeprefix("/")
        if folder and not is_inside(root, folder):
            continue
        if not urls.is_local(leftover.url):
            removal.remove_tree(leftover.url)
        elif _is_single(path):
            _remove_temporary_file(path)
        elif STEP_NAME.fullmatch(path.name):
            _remove_step(path)
        else:
            removal.remove_tree(leftover.url)


def _remove_temporary_file(path: Path) -> None:
    # if the file is neither removed here nor locked, it cannot be locked (some file systems have no locks)
    if not stale_files.remove_unlocked(path) and not locks.is_locked(path):
        removal.remove(str(path))


def _remove_step(path: Path) -> None:
    aside = path.with_name(atomic.temporary_name(path.name))
    with storage_errors(str(path)), suppress(FileNotFoundError):
        path.rename(aside)
        if not _has_driver(aside):
            removal.remove_tree(str(aside))
        elif not path.exists():
            aside.rename(path)


def _steps(listed: list[FileInfo]) -> dict[str, list[FileInfo]]:
    """Return a mapping from the path of every step to the step's files."""
    steps: dict[str, list[FileInfo]] = {}
    for info in listed:
        step = step_of(info.path)
        if step is not None and step != info.path:
            steps.setdefault(step, []).append(info)
    return steps


def _logs(listed: list[FileInfo]) -> dict[str, list[FileInfo]]:
    """Return a mapping from the path of every run's log, `<root>/<dataset>/runs/<run>`, to the log's files."""
    logs: dict[str, list[FileInfo]] = {}
    for info in listed:
        parts = info.path.split("/")
        if len(parts) == 4 and parts[1] == RUNS and parts[0] != SOURCES:
            logs.setdefault("/".join(parts[:3]), []).append(info)
    return logs


@dataclass(frozen=True)
class _AgeLimit:
    root: str
    seconds: float

    @cached_property
    def _now(self) -> float:
        return store_clock.now(self.root)

    def exceeded(self, changed: float) -> bool:
        """Return True if `changed`, a time by the clock of the root's store, was at least `seconds` ago."""
        return self._now - changed >= self.seconds


def _step_leftovers(root: str, step: str, files: list[FileInfo], limit: _AgeLimit) -> Iterator[Leftover]:
    directory, inside = urls.join(root, step), [info.path.removeprefix(f"{step}/") for info in files]
    if FILE_NAME in inside:
        exchange = [info.size for info in files if info.path.startswith(f"{step}/{EXCHANGE_FOLDER}/")]
        if exchange:
            yield Leftover(urls.join(directory, EXCHANGE_FOLDER), sum(exchange), "exchange files of a finished step")
        return
    made_by_datakit = any(path.startswith(f"{LEDGER}/") for path in inside) or PARTIAL_NAME in inside
    if made_by_datakit and not _in_use(directory, files, limit):
        yield Leftover(directory, sum(info.size for info in files), "an unfinished step that no run is working on")


def _in_use(directory: str, files: list[FileInfo], limit: _AgeLimit) -> bool:
    """Return True if a driver is working on the step, or if the step changed within the limit."""
    if urls.is_local(directory) and _has_driver(Path(urls.local_path(directory))):
        return True
    return not limit.exceeded(_last_change(directory, files))


def _last_change(directory: str, files: list[FileInfo]) -> float:
    """Return the time of the most recent change to any of the files, by the clock of the disk or store."""
    local = urls.is_local(directory)
    return max(os.path.getmtime(info.url) for info in files) if local else urls.last_change(directory)


def _rotated(root: str, run: str, files: list[FileInfo], limit: _AgeLimit) -> Iterator[Leftover]:
    """Yield the rotated files of a run's log, unless the run has written to its log within the limit."""
    rotated = [info for info in files if ROTATED.fullmatch(urls.name(info.path))]
    if rotated and limit.exceeded(_last_change(urls.join(root, run), files)):
        for info in rotated:
            yield Leftover(info.url, info.size, "rotated events of a run that has ended")


def _has_driver(step: Path) -> bool:
    """Return True if a driver holds the lock on a segment of the step's ledger. A link to a ledger is not followed."""
    ledger = step / LEDGER
    return not ledger.is_symlink() and any(locks.is_locked(segment) for segment in ledger.glob("*"))


def _temporary_files(root: str, limit: _AgeLimit) -> Iterator[Leftover]:
    if not urls.is_local(root):
        return
    for path in Path(urls.local_path(root)).rglob(f"{atomic.TEMPORARY_PREFIX}*"):
        if not _is_ours(path):
            continue
        try:
            state, size = path.lstat(), _size(path)
        except FileNotFoundError:  # the file has just been renamed or removed
            continue
        if locks.is_locked(path):
            continue
        if stale_files.in_our_domain(path):
            yield Leftover(str(path), size, "a temporary file of a dead process")
        elif limit.exceeded(state.st_mtime):
            yield Leftover(str(path), size, "an old temporary file")


def _is_ours(path: Path) -> bool:
    """Return True if datakit gave this temporary name to a file, or to a step that it was removing."""
    name = stale_files.original_name(path.name)
    return name is not None and (_is_single(path) or STEP_NAME.fullmatch(name) is not None)


def _size(path: Path) -> int:
    """Return the size of a file or, for a step's directory that was not removed completely, of all files in it."""
    return sum(entry.lstat().st_size for entry in ([path] if _is_single(path) else path.rglob("*")))


def _is_single(path: Path) -> bool:
    """Return True for a file and for a link, whatever it leads to."""
    return path.is_symlink() or not path.is_dir()
