"""A lock lasts as long as the process that took it, not as long as a process that it forked."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from datakit.storage import atomic, locks
from tests.support.engine.runs import wait_until
from tests.support.faults.abandoned import in_this_namespace

FORKS = """
import os, sys, time
from pathlib import Path
from datakit.storage import locks
locks.create(lambda: Path(sys.argv[1]), 0o600)
child = os.fork()
if child:
    Path(sys.argv[2]).write_text(str(child))
    print("forked", flush=True)
time.sleep(600)
"""


def test_lock_ends_with_its_owner_although_a_fork_lives(tmp_path: Path) -> None:
    path = tmp_path / "file"
    process = in_this_namespace(FORKS, str(path), str(tmp_path / "fork"))
    fork = int((tmp_path / "fork").read_text())
    try:
        assert locks.is_locked(path)
        process.kill()
        process.wait()
        os.kill(fork, 0)
        wait_until(lambda: not locks.is_locked(path))  # the fork closes its copy as soon as it runs
    finally:
        os.kill(fork, 9)


def test_program_that_an_owner_starts_does_not_keep_the_lock(tmp_path: Path) -> None:
    path, lock = locks.create(lambda: tmp_path / "file", 0o600)
    with subprocess.Popen(["sleep", "600"], close_fds=False) as process:
        locks.release(lock)
        assert not locks.is_locked(path)
        process.kill()


def test_locked_file_is_locked_in_its_own_process_too(tmp_path: Path) -> None:
    path, lock = locks.create(lambda: tmp_path / "file", 0o600)
    assert locks.is_locked(path) and locks.take(path) is None
    locks.release(lock)
    taken = locks.take(path)
    assert taken is not None and locks.is_locked(path)
    locks.release(taken)


def test_file_deleted_before_its_lock_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter("abc")
    flock = fcntl.flock

    def removed_first(descriptor: int, kind: int) -> None:
        (tmp_path / "a").unlink(missing_ok=True)
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    path, lock = locks.create(lambda: tmp_path / next(names), 0o600)
    assert path == tmp_path / "b" and path.exists()
    locks.release(lock)


def test_sharing_a_deleted_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locks.share(tmp_path / "gone")


def test_files_on_a_file_system_without_locks_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system here lacks locks, so the system call is made to fail as on one that does."""

    def no_locks(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path, lock = locks.create(lambda: tmp_path / "file", 0o600)
    assert locks.take(path) is None and not locks.is_locked(path)
    locks.release(lock)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link", "gone"):
        assert locks.take(tmp_path / name) is None and not locks.is_locked(tmp_path / name)


def test_domain_differs_between_file_systems(tmp_path: Path) -> None:
    assert locks.domain(str(tmp_path)) == locks.domain(str(tmp_path.parent))
    assert locks.domain(str(tmp_path)) != locks.domain("/proc")


def test_many_staged_files_take_no_more_than_the_allowed_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_held", set())  # those of other tests may end meanwhile
    monkeypatch.setattr(atomic, "MOST_LOCKS", 1)
    with atomic.staging(str(tmp_path / "a")) as first, atomic.staging(str(tmp_path / "b")) as second:
        assert locks.is_locked(first) and not locks.is_locked(second)
        assert atomic.NO_LOCK in second.name, "so that only its age counts"
