"""Clearing away removes what no manifest refers to, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import msgspec
import pytest

from datakit.engine.executor import Cause
from datakit.engine.ledger.ledger import AttemptLine, DriverLine, PhaseLine
from datakit.engine.task import TaskResult
from datakit.pipeline.garbage import DAY_SECONDS, find_leftovers
from datakit.storage import atomic, urls
from tests.support.small_shelf import (
    REPOSITORY,
    command,
    finished,
    step,
    tree,
    write_pages,
)

__all__ = ["finished"]  # a fixture


def test_gc_removes_what_no_manifest_refers_to_and_nothing_else(finished: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(finished / "root", root)
    before = tree(root, without=())
    host = os.uname().nodename.replace("-", "_")
    done, junk = step(tmp_path, "root/shelf/dedup-*"), []
    junk.append(root / "shelf" / f".tmp-{host}-999999999-0123-part.parquet")  # no such process
    junk.append(done / "exchange" / "bands" / "00000.arrow")
    junk.append(root / "shelf" / "tokenize-0123456789ab" / "ledger" / "20200101T000000Z-999999999-abcdef-00000.jsonl")
    kept = [
        root / "shelf" / f".tmp-{host}-{os.getpid()}-0123-part.parquet",  # of a process that lives
        root / "shelf" / "tokenize-ba9876543210" / "notes.txt",  # no ledger: not ours
        root / "mine" / "backup-0123456789ab" / "ledger" / "x.jsonl",  # no stage of datakit
        root / "sources" / "novels" / "normalize-ba9876543210" / "ledger"
        / f"20200101T000000Z-{os.getpid()}-abcdef-00000.jsonl",  # a run that lives works on it
    ]  # fmt: skip
    for path in [*junk, *kept]:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = {"kind": "driver", "driver": path.name.rpartition("-")[0], "time": 0.0, "versions": {}}
        path.write_text(json.dumps(lines) + "\n" if "ledger" in path.parts else "x")
        os.utime(path, (0, 0))
    listed = command("gc", "root", "--json", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    assert found["removed"] is False
    assert {entry["url"] for entry in found["leftovers"]} == {
        str(junk[0]), str(done / "exchange"), str(junk[2].parents[1]),
    }  # fmt: skip
    assert all(path.exists() for path in junk), "it lists unless it is told to delete"
    assert command("gc", "root", "--delete", cwd=tmp_path).returncode == 0
    assert not any(path.exists() for path in junk)
    assert all(path.exists() for path in kept)
    assert before.items() <= tree(root, without=()).items()
    assert json.loads(command("gc", "root", "--json", cwd=tmp_path).stdout)["leftovers"] == []


@pytest.fixture
def begun_long_ago() -> Iterator[tuple[str, str]]:
    """A root in a store, and a step there on which another host's driver began to work two days ago; so say its files.

    Its last task was done a minute ago.
    """
    driver, begun = "20200101T000000000Z-999999999-abcdef", time.time() - 2 * DAY_SECONDS
    done = AttemptLine("encode", "a", "d", 1, Cause.DONE, TaskResult(), time=time.time() - 60)
    lines = [DriverLine(driver, begun, {}), PhaseLine("encode", ["a", "b"], [1, 1], begun), done]
    root = "memory://gc-of-a-store"
    directory = f"{root}/shelf/tokenize-0123456789ab"
    atomic.commit_bytes(b"abc", f"{directory}/novels/shard-00000/c/0")
    atomic.commit_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), f"{directory}/ledger/{driver}-0")
    set_times(root, begun)
    yield root, directory
    urls.remove_tree(root)


def set_times(root: str, seconds: float) -> None:
    """When the memory store's files were written, as it says."""
    for path, file in fsspec.filesystem("memory").store.items():
        if path.startswith(root.removeprefix("memory:/")):
            file.created = file.modified = datetime.fromtimestamp(seconds, UTC)


def test_in_a_store_a_step_counts_as_changed_when_a_task_was_last_done(begun_long_ago: tuple[str, str]) -> None:
    root, directory = begun_long_ago
    assert find_leftovers(root) == []
    assert [leftover.url for leftover in find_leftovers(root, 30.0)] == [directory]


def test_in_a_store_a_step_counts_as_changed_when_a_file_was_last_written(begun_long_ago: tuple[str, str]) -> None:
    root, directory = begun_long_ago
    set_times(root, time.time() - 20)
    assert find_leftovers(root, 30.0) == []
    assert [leftover.url for leftover in find_leftovers(root, 10.0)] == [directory]


def test_gc_keeps_a_step_that_changed_lately(tmp_path: Path) -> None:
    recipe = write_pages(tmp_path, "poisoned")
    path = f"{REPOSITORY}{os.pathsep}{tmp_path}"
    assert command("run", recipe, "--root", "root", cwd=tmp_path, PYTHONPATH=path).returncode == 3
    assert json.loads(command("gc", "root", "--json", cwd=tmp_path).stdout)["leftovers"] == []
    (leftover,) = json.loads(command("gc", "root", "--older-than", "0", "--json", cwd=tmp_path).stdout)["leftovers"]
    assert leftover["url"] == str(step(tmp_path, "root/sources/pages/normalize-*"))
