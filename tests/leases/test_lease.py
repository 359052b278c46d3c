"""A lease keeps steps, an announcement makes others wait, and a lost lease is noticed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from datakit.errors import CorruptError, NewerFormatError, NotFoundError, RetentionError, StorageError
from datakit.leases import lease
from datakit.leases.lease import Lease
from datakit.leases.lease_files import COLLECT, EXPIRED_SECONDS, USE, read_leases
from datakit.storage import atomic
from tests.support.engine.runs import wait_until
from tests.support.paths import REPOSITORY
from tests.support.retention.tiny_roots import age, step_path, write_step
from tests.support.s3 import s3_root

STEP = step_path("shelf", "tokenize", "0")


def held(root: Path) -> list[str]:
    """The steps in the live leases of a root."""
    return [step for lease in read_leases(str(root), USE) if not lease.expired for step in lease.content.steps]


def test_lease_names_its_steps_until_it_ends(tmp_path: Path) -> None:
    with Lease(str(tmp_path), USE, "datakit run shelf") as lease:
        lease.hold([str(tmp_path / STEP), "/elsewhere/dedup-000000000000"])
        assert held(tmp_path) == [STEP]
        (found,) = read_leases(str(tmp_path), USE)
        assert found.content.holder == f"datakit run shelf (process {os.getpid()} on {os.uname().nodename})"
        lease.hold([str(tmp_path / "a" / "b")])
        assert held(tmp_path) == ["a/b", STEP]
    assert read_leases(str(tmp_path), USE) == []


def test_no_lease_is_written_to_a_root_that_does_not_exist(tmp_path: Path) -> None:
    with Lease(str(tmp_path / "root"), USE, "run") as lease:
        lease.hold([str(tmp_path / "root" / STEP)])
        assert not (tmp_path / "root").exists()
        lease.begin()
        assert held(tmp_path / "root") == [STEP]


def test_step_is_held_only_once_the_lease_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holding a step again writes the lease if the root has appeared, or the disk has recovered, meanwhile."""
    root, write = tmp_path / "root", atomic.replace_bytes

    def fail(data: bytes, url: str) -> None:
        raise StorageError("the disk does not answer")

    with Lease(str(root), USE, "run") as lease:
        lease.hold([str(root / STEP)])
        root.mkdir()  # by another process, whose `datakit gc` may come next
        monkeypatch.setattr(atomic, "replace_bytes", fail)
        with pytest.raises(StorageError, match="does not answer"):
            lease.hold([str(root / STEP)])
        assert held(root) == []
        monkeypatch.setattr(atomic, "replace_bytes", write)
        lease.hold([str(root / STEP)])
        assert held(root) == [STEP]


def test_step_behind_a_linked_root_is_held(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Lease(str(tmp_path / "real"), USE, "run") as lease:
        lease.hold([str(tmp_path / "link" / STEP)])
        assert held(tmp_path / "real") == [STEP]


HOLDER = """
import sys, time
from datakit.leases.lease import Lease
with Lease(sys.argv[1], "use", "run") as lease:
    lease.hold([sys.argv[2]])
    print("held", flush=True)
    time.sleep(600)
"""


def test_lease_of_a_killed_process_expires(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), str(tmp_path / STEP)], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    process.kill()
    process.communicate()
    assert held(tmp_path) == [STEP]
    age(str(tmp_path), ".leases", EXPIRED_SECONDS)
    assert held(tmp_path) == []


def test_run_waits_for_an_announcement_that_names_its_step(tmp_path: Path) -> None:
    said, done = list[str](), threading.Event()

    def run() -> None:
        with Lease(str(tmp_path), USE, "run", said.append) as lease:
            lease.hold([str(tmp_path / STEP)])
            done.set()

    with Lease(str(tmp_path), COLLECT, "datakit gc") as announcement:
        announcement.hold([str(tmp_path / STEP)])
        with Lease(str(tmp_path), USE, "another run") as other:
            other.hold([str(tmp_path / "shelf/dedup-000000000000")])  # not announced, so there is nothing to wait for
        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: bool(said))
        assert not done.is_set()
    thread.join()
    assert done.is_set()
    (text,) = said
    assert re.match(r"waiting for datakit gc \(process \d+ on .*\), which is removing steps from ", text)


def test_expired_announcement_is_ended_by_the_run_that_needs_its_steps(tmp_path: Path) -> None:
    with Lease(str(tmp_path), COLLECT, "datakit gc") as announcement:
        announcement.hold([str(tmp_path / STEP)])
        age(str(tmp_path), ".leases", EXPIRED_SECONDS)
        with Lease(str(tmp_path), USE, "run") as lease:
            lease.hold([str(tmp_path / STEP)])
        with pytest.raises(StorageError, match="did not renew it for 300 seconds"):
            announcement.require()


def test_lease_that_others_ended_is_not_written_again(tmp_path: Path) -> None:
    with Lease(str(tmp_path), USE, "run") as lease:
        lease.hold([str(tmp_path / STEP)])
        Path(lease.url).unlink()
        lease._renew()
        assert not Path(lease.url).exists()
        with pytest.raises(StorageError, match="run the same command again"):
            lease.hold([str(tmp_path / STEP)])


def test_renewal_that_comes_too_late_is_a_loss(tmp_path: Path) -> None:
    """Others may have removed the file before this renewal wrote it again."""
    with Lease(str(tmp_path), USE, "run") as lease:
        lease.hold([str(tmp_path / STEP)])
        lease._renew()
        lease.require()
        lease._renewed -= EXPIRED_SECONDS
        lease._renew()
        with pytest.raises(StorageError, match="did not renew it for 300 seconds"):
            lease.require()


def test_step_that_was_removed_before_it_was_held_is_named(tmp_path: Path) -> None:
    write_step(str(tmp_path), STEP)
    with Lease(str(tmp_path), USE, "datakit train") as lease:
        lease.hold_finished([str(tmp_path / STEP)])
        (tmp_path / STEP / "manifest.json").unlink()
        with pytest.raises(NotFoundError, match=f"{STEP} was removed while this command started"):
            lease.hold_finished([str(tmp_path / STEP)])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{", CorruptError),
        (json.dumps({"format": "datakit.lease/2"}).encode(), NewerFormatError),
        (
            json.dumps(
                {"kind": "use", "steps": ["../x"], "host": "", "pid": 0, "command": "", "format": "datakit.lease/1"}
            ).encode(),
            CorruptError,
        ),
    ],
    ids=["damaged", "newer", "leads out of the root"],
)
def test_lease_that_cannot_be_read_is_refused_until_it_expires(
    tmp_path: Path, content: bytes, error: type[Exception]
) -> None:
    (tmp_path / ".leases").mkdir()
    (tmp_path / ".leases" / "use-1.json").write_bytes(content)
    with pytest.raises(error, match=r"use-1\.json"):
        read_leases(str(tmp_path), USE)
    age(str(tmp_path), ".leases", EXPIRED_SECONDS)
    (lease,) = read_leases(str(tmp_path), USE)
    assert lease.expired


def test_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".leases").symlink_to(tmp_path / "outside")
    with pytest.raises(RetentionError, match="is a link"):
        Lease(str(tmp_path / "root"), USE, "run")


def test_leases_work_in_a_store() -> None:
    with s3_root() as root, Lease(root, USE, "run") as lease:
        lease.hold([f"{root}/{STEP}"])
        (found,) = read_leases(root, USE)
        assert (found.content.steps, found.expired) == ([STEP], False)
        lease._renew()
        lease.require()


def test_lease_that_was_not_renewed_in_time_is_lost_although_its_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lease(str(tmp_path), USE, "run") as late:
        late.hold([f"{tmp_path}/shelf/dedup-000000000001"])
        late.require()
        now = lease._now()
        monkeypatch.setattr(lease, "_now", lambda: now + EXPIRED_SECONDS)
        with pytest.raises(StorageError, match="has expired"):
            late.require()
