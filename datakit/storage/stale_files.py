"""Creates scratch directories, and removes temporary files and scratch directories whose owners are dead.

Every owner holds a lock: on a temporary file itself, or on the file `.lock` in a scratch directory. A task's scratch
directory has two owners, the process that waits for the task and the child that runs it; it counts as abandoned when
both are dead. Before anything is removed, its lock is taken exclusively; the lock is held until the removal is done.
Therefore no process can begin to use a file between the test that finds it unlocked and its removal.

    unlocked, same lock domain (`locks.py`)     removed at once
    unlocked, any other domain or an old form   removed from the temporary folder if nothing in it has changed for a
                                                day, by the folder's own clock; in a root, `datakit gc` does this
    locked                                      never removed

Object stores have no temporary files.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datakit.storage import atomic, locks, store_clock, urls

SCRATCH, RAY = "datakit-scratch-", "datakit-ray-"
LOCK = ".lock"
DAY_SECONDS = 86_400.0
_PREFIX, _NUMBER = re.escape(atomic.TEMPORARY_PREFIX), "[0-9a-f]{32}"
_TEMPORARY = re.compile(rf"{_PREFIX}([0-9a-f]{{16}})-{_NUMBER}-")
_EARLIER = re.compile(rf"{_PREFIX}[^-]+-\d+-{_NUMBER}-")  # earlier versions: the host and the process id


def remove_dead_files(directory: str) -> list[Path]:
    """Remove the temporary files that dead processes left below a local directory; return the files' paths."""
    if not urls.is_local(directory):
        return []
    found = os.walk(urls.local_path(directory))  # tolerates vanishing directories, unlike rglob
    return [path for folder, _, names in found for path in _remove_dead(folder, names)]


def remove_dead_files_in(directory: str) -> list[Path]:
    """Remove dead processes' temporary files from a local directory, but not from its subdirectories; return the files'
    paths.
    """
    folder = urls.local_path(directory)
    return _remove_dead(folder, os.listdir(folder))


def _remove_dead(folder: str, names: Iterable[str]) -> list[Path]:
    found = [Path(folder, name) for name in names if name.startswith(atomic.TEMPORARY_PREFIX)]
    return [path for path in found if in_our_domain(path) and remove_unlocked(path)]


def original_name(name: str) -> str | None:
    """Return the end of the final name of the file with this temporary name; None if datakit did not make the name."""
    match = _TEMPORARY.match(name) or _EARLIER.match(name)
    return name[match.end() :] if match else None


def in_our_domain(path: Path) -> bool:
    """Return True if the name of a temporary file shows that its owner's lock would be visible to this process."""
    match = _TEMPORARY.match(path.name)
    if match is None:
        return False
    with suppress(FileNotFoundError):
        return match[1] == locks.domain(str(path.parent))
    return False


def remove_unlocked(path: Path) -> bool:
    """Remove a file unless it is locked. Return True if it was removed."""
    lock = locks.take(path)
    if lock is None:
        return False
    try:
        path.unlink()
    finally:
        locks.release(lock)
    return True


@contextmanager
def scratch_directory(prefix: str = SCRATCH) -> Iterator[Path]:
    """Provide a private directory, which is locked during the `with` block and then removed."""
    path, lock = Path(tempfile.mkdtemp(prefix=prefix)), None
    try:
        os.close(os.open(path / LOCK, os.O_CREAT | os.O_EXCL, 0o600))
        lock = locks.share(path / LOCK)
        # without this, other processes would remove the directory of a dead process only after a day
        os.write(lock, locks.domain(str(path)).encode())
        yield path
    finally:
        _remove_scratch(path, lock)


def share_scratch(path: Path) -> int:
    """Become the second owner of a scratch directory until this process ends, and return the lock."""
    return locks.share(path / LOCK)


def remove_dead_scratch() -> list[Path]:
    """Remove the scratch directories and temporary files that dead processes left in the system's temporary folder;
    return the paths of what was removed.
    """
    folder = tempfile.gettempdir()
    removed = remove_dead_files_in(folder)
    age = _Age(folder)
    for path in sorted(Path(folder).iterdir()):
        foreign = _TEMPORARY.match(path.name) is not None and not in_our_domain(path)
        scratch = path.name.startswith((SCRATCH, RAY)) and _is_own_directory(path)
        if (foreign and age.exceeded(path) and remove_unlocked(path)) or (scratch and _remove_dead_scratch(path, age)):
            removed.append(path)
    return removed


class _Age:
    """Tells whether something in a folder is old, by the clock of the folder's file system. Reads this clock at most
    once, because each reading requires writing a file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._now: float | None = None

    def exceeded(self, path: Path) -> bool:
        """Return True if nothing at or below `path` has changed for a day, by the folder's clock."""
        self._now = self._now or store_clock.now(self._folder)
        with suppress(FileNotFoundError):
            changed = [path.lstat().st_mtime, *(entry.lstat().st_mtime for entry in path.rglob("*"))]
            return self._now - max(changed) >= DAY_SECONDS
        return False


def _is_own_directory(path: Path) -> bool:
    with suppress(FileNotFoundError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _remove_dead_scratch(path: Path, age: _Age) -> bool:
    """Remove a scratch directory if its owners are dead. Return True if it was removed."""
    lock = locks.take(path / LOCK)
    if lock is None and (path / LOCK).exists():
        return False  # in use
    ours = lock is not None and os.pread(lock, 64, 0).decode("ascii", "replace") == locks.domain(str(path.parent))
    if ours or age.exceeded(path):
        _remove_scratch(path, lock)
        return not path.exists()
    if lock is not None:
        locks.release(lock)
    return False


def _remove_scratch(path: Path, lock: int | None) -> None:
    """Remove a scratch directory and release the lock on it. The lock file is deleted last, so that the next run finds
    and removes what remains if this process is killed, or if another process is still writing to the directory.
    """
    try:
        with suppress(OSError):
            _empty(path)
    finally:
        if lock is not None:
            locks.release(lock)  # before rmdir: NFS keeps a deleted file until it is closed
    with suppress(OSError):
        path.rmdir()


def _empty(path: Path) -> None:
    for name in os.listdir(path):
        entry = path / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif name != LOCK:
            entry.unlink(missing_ok=True)
    if os.listdir(path) == [LOCK]:
        (path / LOCK).unlink()
