"""Only what nobody holds locked is removed, whichever process ids, hosts and namespaces the owners have."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit.storage import atomic, locks, stale_files
from tests.support.engine.runs import wait_until
from tests.support.faults.abandoned import abandoned_scratch, in_namespace, in_this_namespace, unlocked_name

OWNER = """
import os, sys, tempfile, time
from pathlib import Path
from datakit.storage import atomic, stale_files
with stale_files.scratch_directory() as scratch, atomic.staging(sys.argv[1]) as staged:
    (scratch / "spill").write_bytes(bytes(100))
    staged.write_bytes(b"half")
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
OLD = time.time() - 2 * stale_files.DAY_SECONDS


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def make_old(path: Path) -> Path:
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (OLD, OLD))
    return path


def test_only_unlocked_temporary_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    dead = [unlocked_name(tmp_path, "file"), unlocked_name(tmp_path / "below", "file")]
    elsewhere = tmp_path / atomic.temporary_name("file", "0123456789abcdef")
    kept = [elsewhere, tmp_path / "part.parquet", tmp_path / ".tmp-host.0123abcd.4026531836-77-0123-file"]
    for path in (*dead, *kept):
        path.touch()
    with atomic.staging(str(tmp_path / "mine")) as mine:
        assert stale_files.remove_dead_files_in(str(tmp_path)) == dead[:1]
        assert stale_files.remove_dead_files(str(tmp_path)) == dead[1:]
        assert all(path.exists() for path in (*kept, mine))


@pytest.fixture(params=[True, False], ids=["namespace", "process"])
def owner(request: pytest.FixtureRequest, temporary: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a scratch directory and a temporary file, in another PID namespace or in ours."""
    start = in_namespace if request.param else in_this_namespace
    process = start(OWNER, str(tmp_path / "out" / "part"), TMPDIR=str(temporary))
    yield process
    process.kill()
    process.wait()


def test_files_are_removed_once_their_owner_is_killed(
    owner: subprocess.Popen[str], temporary: Path, tmp_path: Path
) -> None:
    """In its namespace, the owner's process id is 1, which is the id of a living process here."""
    (scratch, lock), (staged,) = sorted(temporary.iterdir()), list((tmp_path / "out").iterdir())
    assert stale_files.remove_dead_scratch() == [] == stale_files.remove_dead_files(str(tmp_path))
    assert scratch.exists() and staged.exists()
    owner.kill()
    wait_until(lambda: not locks.is_locked(lock) and not locks.is_locked(staged))
    assert stale_files.remove_dead_files(str(tmp_path)) == [staged]
    assert stale_files.remove_dead_scratch() == [scratch]
    assert list(temporary.iterdir()) == [] == list((tmp_path / "out").iterdir())


def test_cleaner_in_a_namespace_keeps_our_files(temporary: Path, tmp_path: Path) -> None:
    """There, no process has our id."""
    cleaner = "from datakit.storage import stale_files; import sys; removed = stale_files.remove_dead_scratch()\n"
    cleaner += "print('removed', *removed, *stale_files.remove_dead_files(sys.argv[1]))"
    with stale_files.scratch_directory() as scratch, atomic.staging(str(tmp_path / "part")) as staged:
        process = in_namespace(cleaner, str(tmp_path), TMPDIR=str(temporary))
        assert process.wait() == 0
        assert scratch.is_dir() and staged.exists()


def test_second_owner_keeps_the_scratch_of_a_dead_driver(temporary: Path) -> None:
    """A task's child may outlive its driver for a moment."""
    process = in_this_namespace(OWNER, str(temporary / "part"), TMPDIR=str(temporary))
    scratch, _ = sorted(temporary.glob("datakit-scratch-*"))
    lock = stale_files.share_scratch(scratch)
    process.kill()
    process.wait()
    stale_files.remove_dead_scratch()
    assert scratch.exists()
    locks.release(lock)
    assert stale_files.remove_dead_scratch() == [scratch]


def test_unlocked_scratch_of_another_domain_must_be_old(temporary: Path) -> None:
    """Its owner may live on a machine whose locks are invisible here; so may that of one without a lock."""
    folders = [
        abandoned_scratch(temporary, "0123456789abcdef", prefix) for prefix in (stale_files.SCRATCH, stale_files.RAY)
    ]
    folders += [temporary / "datakit-scratch-bare", temporary / "datakit-scratch-old"]
    for folder in folders[2:]:
        folder.mkdir()
    for folder in folders:
        (folder / "spill").touch()
    staged = temporary / atomic.temporary_name("part", "0123456789abcdef")
    staged.touch()
    assert stale_files.remove_dead_scratch() == []
    for path in list(temporary.iterdir()):
        make_old(path)
    (folders[2] / "spill").touch()
    assert sorted(stale_files.remove_dead_scratch()) == sorted([staged, folders[0], folders[1], folders[3]])
    assert list(temporary.iterdir()) == [folders[2]], "a file in it was changed today"


def test_scratch_of_an_earlier_version_is_kept_while_locked(temporary: Path) -> None:
    folder = temporary / "datakit-scratch-ab12cd34"
    folder.mkdir()
    (folder / ".lock").touch()
    lock = locks.share(folder / ".lock")
    make_old(folder)
    assert stale_files.remove_dead_scratch() == []
    locks.release(lock)
    assert stale_files.remove_dead_scratch() == [folder]


def test_old_but_locked_scratch_is_kept(temporary: Path) -> None:
    with stale_files.scratch_directory() as scratch:
        make_old(scratch)
        assert stale_files.remove_dead_scratch() == []
        assert scratch.exists()
    assert list(temporary.iterdir()) == []


def test_links_in_the_temporary_folder_are_not_followed(temporary: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    abandoned_scratch(temporary).rmdir()
    (temporary / "datakit-scratch-0123456789").symlink_to(precious)
    (temporary / "datakit-scratch-link").symlink_to(precious)
    unlocked_name(temporary, "part").symlink_to(precious / "file")
    with stale_files.scratch_directory() as dead:
        (dead / "link").symlink_to(precious)
    make_old(precious)
    assert stale_files.remove_dead_scratch() == []
    assert (precious / "file").exists()


def test_scratch_that_a_dying_child_still_fills_is_removed_later(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child creates a file after the directory has been emptied and before it is removed."""

    def remove_except_for_a_new_file(path: Path, ignore_errors: bool) -> None:
        remove(path, ignore_errors=ignore_errors)
        path.mkdir()
        (path / "output.txt").touch()

    remove = shutil.rmtree
    with monkeypatch.context() as patch, stale_files.scratch_directory() as scratch:
        patch.setattr(shutil, "rmtree", remove_except_for_a_new_file)
        child = stale_files.share_scratch(scratch)
    assert stale_files.remove_dead_scratch() == [], "the child is alive"
    locks.release(child)
    assert stale_files.remove_dead_scratch() == [scratch]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("step", ["locked", "made", "removed"])
def test_next_run_removes_what_a_kill_at_any_point_leaves(temporary: Path, step: str) -> None:
    """The owner is killed after it has locked the lock file, created the directory, or removed the directory again."""
    kill = "os.kill(os.getpid(), 9)"
    program = f"""
import os, shutil, sys
from pathlib import Path
from datakit.storage import stale_files
real_mkdir, real_unlink = Path.mkdir, Path.unlink
def mkdir(self, *arguments, **options):
    {kill if step == "locked" else "real_mkdir(self, *arguments, **options)"}
    {kill if step == "made" else "pass"}
def unlink(self, *arguments, **options):
    {kill if step == "removed" else "real_unlink(self, *arguments, **options)"}
Path.mkdir, Path.unlink = mkdir, unlink
print("ready", flush=True)
with stale_files.scratch_directory() as scratch:
    (scratch / "spill").touch()
"""
    process = in_this_namespace(program, TMPDIR=str(temporary))
    assert process.wait() == -9
    assert any(temporary.iterdir())
    stale_files.remove_dead_scratch()
    assert list(temporary.iterdir()) == []


def test_staging_and_removal_at_the_same_time_lose_no_file(tmp_path: Path) -> None:
    """A file that was created, but not yet locked, may be removed; its owner then creates another one."""
    stop, failures = threading.Event(), []

    def clean() -> None:
        while not stop.is_set():
            stale_files.remove_dead_files_in(str(tmp_path))

    cleaners = [threading.Thread(target=clean) for _ in range(2)]
    for cleaner in cleaners:
        cleaner.start()
    try:
        for number in range(500):
            with atomic.staging(str(tmp_path / f"{number}")) as path:
                if not path.exists():
                    failures.append(number)
    finally:
        stop.set()
        for cleaner in cleaners:
            cleaner.join()
    assert failures == []
    assert list(tmp_path.iterdir()) == []
