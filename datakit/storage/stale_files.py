"""Creates scratch directories, and removes temporary files and scratch directories whose owners are dead.

Every owner holds a lock: on the temporary file itself, or on the lock file beside the scratch directory. A task's
scratch directory has two owners, the process that waits for the task and the child that runs it; the directory counts
as abandoned when both are dead. Before anything is removed, its lock is taken exclusively; the lock is held until the
removal is done. Therefore no process can begin to use a file between the test that finds it unlocked and its removal.

A lock file is created before its directory and deleted after it, so after a kill at any point, the next run recognizes
what was left. A lock file inside the directory would not be enough: a dying child may still create a file while the
directory is being removed, and the directory would then remain without its lock file.

    unlocked, same lock domain (`locks.py`)     removed at once
    unlocked, any other domain or an old form   removed from the temporary folder if nothing in it has changed for a
                                                day, by the folder's own clock; in a root, `datakit gc` does this
    locked                                      never removed

Object stores have no temporary files.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from datakit.storage import atomic, locks, store_clock, urls

SCRATCH, RAY = "datakit-scratch-", "datakit-ray-"
_LOCK_OF_SCRATCH = re.compile(rf"((?:{SCRATCH}|{RAY})\w+)\.([0-9a-f]{{16}})\.lock")  # the directory's name, the domain
_EARLIER_LOCK = ".lock"  # used by earlier versions, in the directory itself
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
    paths. A directory that does not exist has none.
    """
    if not urls.is_local(directory):
        return []
    with suppress(FileNotFoundError):
        return _remove_dead(folder := urls.local_path(directory), os.listdir(folder))
    return []


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
    folder = Path(tempfile.gettempdir())
    name_lock = partial(_lock_path, folder, locks.domain(str(folder)))
    # a short name, because Ray creates sockets in the directory, and the path of a socket may have at most 107 bytes
    path, lock = locks.create(lambda: name_lock(prefix + secrets.token_hex(5)), 0o600, shared=True)
    directory = folder / path.name.partition(".")[0]
    try:
        directory.mkdir(0o700)
        yield directory
    finally:
        _remove_scratch(directory, path, lock)


def share_scratch(path: Path) -> int:
    """Become the second owner of a scratch directory until this process ends, and return the lock."""
    return locks.share(_lock_path(path.parent, locks.domain(str(path.parent)), path.name))


def _lock_path(folder: Path, domain: str, name: str) -> Path:
    return folder / f"{name}.{domain}.lock"


def remove_dead_scratch() -> list[Path]:
    """Remove the scratch directories and temporary files that dead processes left in the system's temporary folder;
    return the paths of what was removed.
    """
    folder = tempfile.gettempdir()
    removed = remove_dead_files_in(folder)
    age, names = _Age(folder), sorted(os.listdir(folder))
    locked = {match[1]: match for name in names if (match := _LOCK_OF_SCRATCH.fullmatch(name))}
    for name, match in locked.items():
        if _remove_dead_scratch(Path(folder, name), Path(folder, match[0]), match[2], age):
            removed.append(Path(folder, name))
    for path in [Path(folder, name) for name in names if name not in locked]:
        if (_is_foreign(path) and age.exceeded(path) and remove_unlocked(path)) or _remove_old_scratch(path, age):
            removed.append(path)
    return removed


def _is_foreign(path: Path) -> bool:
    return _TEMPORARY.match(path.name) is not None and not in_our_domain(path)


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


def _remove_dead_scratch(directory: Path, lock_path: Path, domain: str, age: _Age) -> bool:
    """Remove a scratch directory if its owners are dead. Return True if it was removed."""
    if not _is_own(lock_path) or (lock := locks.take(lock_path)) is None:
        return False
    if domain == locks.domain(str(directory.parent)) or (
        age.exceeded(lock_path) and (not directory.exists() or age.exceeded(directory))
    ):
        return _remove_scratch(directory, lock_path, lock)
    locks.release(lock)
    return False


def _remove_old_scratch(path: Path, age: _Age) -> bool:
    """Remove a scratch directory of an earlier version, or one without its lock file, if it has not changed for a day.
    Return True if it was removed.
    """
    if not path.name.startswith((SCRATCH, RAY)) or path.is_symlink() or not path.is_dir() or not _is_own(path):
        return False
    if locks.is_locked(path / _EARLIER_LOCK) or not age.exceeded(path):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _is_own(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.lstat().st_uid == os.geteuid()
    return False


def _remove_scratch(directory: Path, lock_path: Path, lock: int) -> bool:
    """Remove a scratch directory, then its lock file, and release the lock. Return True if the directory is gone. If
    another process is still writing to the directory, it and the lock file stay, and the next run removes both.
    """
    try:
        shutil.rmtree(directory, ignore_errors=True)
        if os.path.lexists(directory):
            return False
        lock_path.unlink(missing_ok=True)
        return True
    finally:
        locks.release(lock)
