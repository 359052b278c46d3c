"""`datakit gc` removes only what no manifest refers to."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import fsspec
import msgspec
import pytest

from datakit.engine.executor import Cause
from datakit.engine.ledger.ledger import AttemptLine, DriverLine, LedgerWriter, PhaseLine, driver_name
from datakit.engine.task import TaskResult
from datakit.retention.leftovers import DAY_SECONDS, find_leftovers, remove_leftovers
from datakit.storage import atomic, locks, removal, urls
from tests.support.command_line import command, invoke
from tests.support.engine.runs import wait_until
from tests.support.faults.abandoned import in_namespace, in_this_namespace, unlocked_name
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root
from tests.support.small_shelf import step, tree


def test_gc_removes_only_what_no_manifest_refers_to(finished_copy: Path, request: pytest.FixtureRequest) -> None:
    root = finished_copy / "root"
    before = tree(root, without=())
    done, junk = step(finished_copy, "root/shelf/dedup-*"), []
    junk.append(unlocked_name(root / "shelf", "part.parquet"))
    junk.append(done / "exchange" / "bands" / "00000.arrow")
    junk.append(root / "shelf" / "tokenize-0123456789ab" / "ledger" / "20200101T000000Z-999999999-abcdef-00000.jsonl")
    kept = [
        root / "shelf" / "tokenize-ba9876543210" / "notes.txt",  # no ledger: not made by datakit
        root / "mine" / "backup-0123456789ab" / "ledger" / "x.jsonl",  # not a stage of datakit
        root / "sources" / "novels" / "normalize-ba9876543210" / "ledger"
        / f"20200101T000000Z-{os.getpid()}-abcdef-00000.jsonl",  # a run is working on it
    ]  # fmt: skip
    request.addfinalizer(partial(release_all, locked := []))
    for path in [*junk, *kept]:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = {"kind": "driver", "driver": path.name.rpartition("-")[0], "time": 0.0, "versions": {}}
        path.write_text(json.dumps(lines) + "\n" if "ledger" in path.parts else "x")
        os.utime(path, (0, 0))
    locked.append(locks.share(kept[-1]))
    staged, lock = locks.create(lambda: unlocked_name(root / "shelf", "part.parquet"), 0o600)
    locked.append(lock)
    os.utime(staged, (0, 0))
    kept.append(staged)
    listed = invoke("gc", "root", "--json", cwd=finished_copy)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    assert found["removed"] is False
    assert {entry["url"] for entry in found["leftovers"]} == {
        str(junk[0]), str(done / "exchange"), str(junk[2].parents[1]),
    }  # fmt: skip
    assert all(path.exists() for path in junk), "without --delete it only lists"
    assert invoke("gc", "root", "--delete", cwd=finished_copy).returncode == 0
    assert not any(path.exists() for path in junk)
    assert all(path.exists() for path in kept)
    assert before.items() <= tree(root, without=()).items()
    assert json.loads(invoke("gc", "root", "--json", cwd=finished_copy).stdout)["leftovers"] == []


def release_all(locked: list[int]) -> None:
    for lock in locked:
        locks.release(lock)


DRIVER = """
import sys, time
from datakit.engine.ledger.ledger import LedgerWriter, driver_name
LedgerWriter(sys.argv[1], driver_name()).start()
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("start", [in_namespace, in_this_namespace])
def test_step_of_a_living_driver_is_kept_in_any_namespace(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """The driver's process id means another process here, or none; its step may be as old as it likes."""
    directory = tmp_path / "shelf" / "tokenize-0123456789ab"
    process = start(DRIVER, str(directory))
    (segment,) = (directory / "ledger").iterdir()
    os.utime(segment, (0, 0))
    assert find_leftovers(str(tmp_path), 0.0) == []
    process.kill()
    process.wait()
    wait_until(lambda: not locks.is_locked(segment))
    found = find_leftovers(str(tmp_path))
    assert [leftover.url for leftover in found] == [str(directory)]
    remove_leftovers(str(tmp_path), found)
    assert list((tmp_path / "shelf").iterdir()) == []


def test_driver_that_begins_between_listing_and_removal_keeps_its_step(tmp_path: Path) -> None:
    directory = tmp_path / "shelf" / "tokenize-0123456789ab"
    (directory / "ledger").mkdir(parents=True)
    (directory / "ledger" / "20200101T000000Z-1-abcdef-00000.jsonl").touch()
    found = find_leftovers(str(tmp_path), 0.0)
    assert len(found) == 1
    driver = LedgerWriter(str(directory), driver_name())
    driver.start()
    before = tree(tmp_path, without=())
    remove_leftovers(str(tmp_path), found)
    assert tree(tmp_path, without=()) == before
    driver.close()


def test_link_with_a_temporary_name_is_removed_but_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    root = tmp_path / "root"
    root.mkdir()
    for name, target in (("a", "precious"), ("b", "precious/file"), ("c", "missing")):
        unlocked_name(root, name).symlink_to(tmp_path / target)
    found = find_leftovers(str(root))
    assert len(found) == 3
    remove_leftovers(str(tmp_path), found)
    assert list(root.iterdir()) == []
    assert (tmp_path / "precious" / "file").exists()


def test_temporary_names_of_other_programs_are_kept(tmp_path: Path) -> None:
    kept = [tmp_path / name / "file" for name in (".tmp-build", atomic.temporary_name("build"))]
    kept += [tmp_path / name for name in (".tmp-notes", ".tmp-a-1-b", ".tmp-0123456789abcdef-notes")]
    name = "tokenize-0123456789ab"
    gone = [tmp_path / f"{place}/.tmp-{owner}-{'2' * 32}-{name}" for place, owner in
            (("shelf", "0" * 16), ("web", "host.0a.4026531836-77"))]  # fmt: skip
    for path in (*kept, *(place / "file" for place in gone)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = find_leftovers(str(tmp_path), -60.0)
    assert [leftover.url for leftover in found] == [str(path) for path in gone]
    remove_leftovers(str(tmp_path), found)
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)


@pytest.fixture
def old_step() -> Iterator[tuple[str, str]]:
    """A root in a store, and a step another host's driver started two days ago, by the times of its files.

    By that host's clock, which is wrong, its last task finished a minute ago.
    """
    driver, begun = "20200101T000000000Z-999999999-abcdef", time.time() - 2 * DAY_SECONDS
    done = AttemptLine("encode", "a", "d", 1, Cause.DONE, TaskResult(), time=time.time() - 60)
    lines = [DriverLine(driver, begun, {}), PhaseLine("encode", ["a", "b"], [1, 1], begun), done]
    root = "memory://gc-of-a-store"
    directory = f"{root}/shelf/tokenize-0123456789ab"
    atomic.commit_bytes(b"abc", f"{directory}/data/novels/shard-00000/c/0")
    atomic.commit_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), f"{directory}/ledger/{driver}-0")
    set_times(root, begun)
    yield root, directory
    removal.remove_tree(root)


def set_times(root: str, seconds: float) -> None:
    """Set the time at which the memory store's files were written."""
    for path, file in fsspec.filesystem("memory").store.items():
        if path.startswith(root.removeprefix("memory:/")):
            file.created = file.modified = datetime.fromtimestamp(seconds, UTC)


def test_clock_of_another_host_does_not_count_in_a_store(old_step: tuple[str, str]) -> None:
    root, directory = old_step
    assert [leftover.url for leftover in find_leftovers(root)] == [directory]
    assert find_leftovers(root, 3 * DAY_SECONDS) == []


SKEWED = "import time; real = time.time; time.time = lambda: real() + {}"


@pytest.mark.parametrize("days", [-3, 3])
def test_wrong_clock_of_this_machine_changes_nothing(tmp_path: Path, days: int) -> None:
    """The clock that counts is the one that the files' times come from."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(SKEWED.format(days * DAY_SECONDS))
    host, driver = "elsewhere.0.0", "20200101T000000000Z-999999999-abcdef"
    for name, age in (("new", 0.5), ("old", 1.5)):
        changed = time.time() - age * DAY_SECONDS
        line = msgspec.json.encode(DriverLine(driver, changed, {}))
        for path in (tmp_path / "root" / name / "tokenize-0123456789ab" / "ledger" / f"{driver}-0.jsonl",
                     tmp_path / "root" / name / f".tmp-{host}-1-{'2' * 32}-part"):  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(line + b"\n")
            os.utime(path, (changed, changed))
    done = command("gc", "root", "--json", cwd=tmp_path, PYTHONPATH=f"{tmp_path / 'clock'}:{REPOSITORY}")
    assert done.returncode == 0, done.stderr
    assert {entry["url"] for entry in json.loads(done.stdout)["leftovers"]} == {
        str(tmp_path / "root/old/tokenize-0123456789ab"), str(tmp_path / f"root/old/.tmp-{host}-1-{'2' * 32}-part"),
    }  # fmt: skip
    assert not list((tmp_path / "root").glob(".tmp-*")), "no trace of asking for the time"


def test_written_file_counts_as_a_change_in_a_store(old_step: tuple[str, str]) -> None:
    root, directory = old_step
    set_times(root, time.time() - 20)
    assert find_leftovers(root, 30.0) == []
    assert [leftover.url for leftover in find_leftovers(root, 10.0)] == [directory]


def test_gc_keeps_a_recently_changed_step(finished_copy: Path) -> None:
    directory = step(finished_copy, "root/sources/novels/normalize-*")
    (directory / "manifest.json").unlink()
    assert json.loads(invoke("gc", "root", "--json", cwd=finished_copy).stdout)["leftovers"] == []
    found = json.loads(invoke("gc", "root", "--older-than", "0", "--json", cwd=finished_copy).stdout)
    assert [entry["url"] for entry in found["leftovers"]] == [str(directory)]


ENDED, ALIVE = "20200101T000000000Z-999999999-abcdef", "20200101T000000000Z-999999998-abcdef"


def test_gc_removes_rotated_events_of_ended_runs(tmp_path: Path) -> None:
    for run in (ENDED, ALIVE):
        for name in ("events.jsonl", "events-00002.jsonl", "events-00003.jsonl", "notes.txt"):
            path = tmp_path / "shelf" / "runs" / run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
            os.utime(path, (0, 0))
    os.utime(path.parent / "events.jsonl")  # a live run's heartbeat
    listed = find_leftovers(str(tmp_path))
    rotated = [str(tmp_path / "shelf" / "runs" / ENDED / f"events-0000{number}.jsonl") for number in (2, 3)]
    assert [(leftover.url, leftover.bytes) for leftover in listed] == [(url, 1) for url in rotated]
    assert {leftover.why for leftover in listed} == {"rotated events of a run that has ended"}
    remove_leftovers(str(tmp_path), listed)
    assert len(list(tmp_path.rglob("*.*"))) == 6
    assert find_leftovers(str(tmp_path)) == []


def test_gc_removes_rotated_events_in_a_store() -> None:
    with s3_root() as root:
        for name in ("events.jsonl", "events-00001.jsonl"):
            atomic.replace_bytes(b"x", f"{root}/shelf/runs/{ENDED}/{name}")
        assert find_leftovers(root) == []
        remove_leftovers(root, find_leftovers(root, -60.0))
        assert [info.path for info in urls.listing(root)] == [f"shelf/runs/{ENDED}/events.jsonl"]
