"""Locks a file for as long as its owner lives, and tells whether a file is locked.

A temporary file or a scratch directory is deleted by a process other than its owner only if it is not locked. A process
id or a host name in a file's name cannot show whether the file's owner is alive: containers may share host names and
folders, but not process ids, and ids are reused. The kernel releases a lock when its owner ends, for whatever reason.

    flock, not fcntl's record locks: those belong to a whole process, so a process would find its own files unlocked,
        and would lose a lock by closing any descriptor of the file
    close-on-exec and closed in forks: an flock belongs to the open file, which a forked process shares, so a process
        that a task leaves behind would otherwise keep the lock of its dead parent
    opened for writing: on NFS, Linux asks the server for the lock, and grants an exclusive one only for such files

Some mounted file systems do not support locks, or their locks are visible only within one machine or one container.
Therefore an unlocked file counts as abandoned only if its owner ran in this process's lock domain (the same boot of the
same kernel, and the same mounted file system) or if the file is also old (`stale_files.py`).
Cost: one open descriptor per lock, and some 20 microseconds on a local disk.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import xxhash

UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
_held: set[int] = set()  # the descriptors of this process's locks, which a forked process closes


def domain(folder: str) -> str:
    """Return 16 hex digits that are equal for two processes only if each sees the other's locks in `folder`."""
    return xxhash.xxh3_64_hexdigest(f"{boot()} {os.stat(folder).st_dev}".encode())


@functools.cache
def boot() -> str:
    """Return the id of this boot of the machine, or the name of the machine if its system has no such id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return os.uname().nodename


def create(choose_path: Callable[[], Path], mode: int, *, shared: bool = False) -> tuple[Path, int]:
    """Create a file at the path that `choose_path` returns, and lock it; return its path and the lock. `choose_path` is
    called again if another process has deleted the file before it was locked or is about to delete it. A `shared` lock
    allows other processes to `share` it.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        path = choose_path()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        _held.add(descriptor)
        if _lock(descriptor, kind | fcntl.LOCK_NB) is not False and _is_at(path, descriptor):
            return path, descriptor
        release(descriptor)


def share(path: Path) -> int:
    """Take a shared lock on an existing file, and return the lock. If another process is deleting the file, wait until
    this is done, and raise FileNotFoundError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    _held.add(descriptor)
    _lock(descriptor, fcntl.LOCK_SH)
    if _is_at(path, descriptor):
        return descriptor
    release(descriptor)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def release(descriptor: int) -> None:
    """End a lock."""
    _held.discard(descriptor)  # before it is closed: the number may be given to another file right afterward
    os.close(descriptor)


def count() -> int:
    """Return the number of locks that this process holds."""
    return len(_held)


def take(path: Path) -> int | None:
    """Lock an existing regular file exclusively. Return the lock, or None if the file is locked, is gone, or cannot be
    locked by this user or on this file system.
    """
    descriptor = _open_to_test(path)
    if descriptor is None:
        return None
    _held.add(descriptor)
    if _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) and _is_at(path, descriptor):
        return descriptor
    release(descriptor)
    return None


def is_locked(path: Path) -> bool:
    """Return True if the regular file `path` is locked, by this process or by another one."""
    descriptor = _open_to_test(path)
    if descriptor is None:
        return False
    try:
        return _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) is False
    finally:
        os.close(descriptor)


def _open_to_test(path: Path) -> int | None:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone, replaced by a link, or another user's
        return None


def _lock(descriptor: int, kind: int) -> bool | None:
    """Lock an open file. Return False if another lock prevents this, and None if locks are not supported here."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return None
        raise
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close_in_forked_process() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_forked_process)
