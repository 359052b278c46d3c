"""Estimates follow compression, the stage and the scarcest resource."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datakit.download.source_file import SourceFile
from datakit.engine.task import Phase, Task
from datakit.passages.config import SearchConfig
from datakit.passages.exchange_sizes import exchange_share
from datakit.pipeline.estimate import (
    WORK_SECONDS,
    DiskUse,
    Resources,
    concurrency_of,
    disk_bytes,
    peak,
    raw_text_bytes,
    resources,
)
from datakit.pipeline.graph import READS

AVAILABLE = Resources(4, "", 8 << 30, "", None)


def test_text_size_follows_compression() -> None:
    sizes = {name: raw_text_bytes([SourceFile(name, 1000, "")]) for name in ("a.txt", "a.gz", "a.parquet")}
    assert sizes == {"a.txt": 1000, "a.gz": 2800, "a.parquet": 2500}


def test_peak_disk_use_includes_exchange_files() -> None:
    stays, peak = disk_bytes("normalize", 1_000_000)
    assert 0 < stays < peak
    assert disk_bytes("consolidate", 1_000_000)[0] == disk_bytes("consolidate", 1_000_000)[1]


def test_peak_disk_use_of_passages_depends_on_the_searches() -> None:
    lines, inside, short, long = (
        SearchConfig("line"),
        SearchConfig("line", within="document"),
        SearchConfig("substring", min_bytes=50, ignore=()),
        SearchConfig("substring", min_bytes=500, ignore=()),
    )
    shares = [exchange_share(one) for one in ([inside], [lines], [long], [lines, long], [short])]
    assert 0 < shares[0] < shares[1] < shares[2] < shares[3] < shares[4]
    assert disk_bytes("passages", 1000, shares[4])[1] == disk_bytes("passages", 1000, 0.0)[0] + 1000 * shares[4]


def test_work_of_every_stage_is_estimated() -> None:
    assert {module.NAME for module in READS} == WORK_SECONDS.keys()
    assert WORK_SECONDS["select"] < WORK_SECONDS["signatures"], "it reads no text"


@pytest.mark.parametrize(
    ("tasks", "most"),
    [
        ((1, 1, 1), 30 + 100 + 60 + 20),  # all three fit into the slots, so all hold their temporary files
        ((8, 1, 1), 30 + 100),  # the largest fills the slots: the others begin when it is nearly done
        ((7, 9, 1), 30 + 100 + 60),
    ],
)
def test_steps_that_run_together_hold_their_temporary_files_together(tasks: tuple[int, ...], most: int) -> None:
    sizes = ((10, 110), (10, 70), (10, 30))
    uses = [DiskUse("normalize", *size, count) for size, count in zip(sizes, tasks, strict=True)]
    assert peak(uses, slots=2) == most
    assert peak([*uses, DiskUse("dedup", 1, 51, 1)], slots=2) == max(most, 30 + 51)
    assert peak([*uses, DiskUse("dedup", 1, None, 1)], slots=2) is None


@pytest.mark.parametrize(
    ("tasks", "available", "at_a_time", "reason"),
    [
        (2, AVAILABLE, 2, "limited by the number of tasks"),
        (9, AVAILABLE, 4, "limited by the workers"),
        (9, replace(AVAILABLE, memory_bytes=3 << 30), 3, "limited by the memory"),
        (9, replace(AVAILABLE, memory_bytes=1), 1, "limited by the memory"),
    ],
)
def test_scarcest_resource_limits_concurrency(tasks: int, available: Resources, at_a_time: int, reason: str) -> None:
    phase = Phase("route", tuple(Task(str(number), "module:function", {}) for number in range(tasks)))
    found = concurrency_of(phase, available)
    assert (found.tasks, found.task_memory, found.at_a_time, found.reason) == (tasks, 1 << 30, at_a_time, reason)


def test_requested_workers_are_used(tmp_path: Path) -> None:
    assert resources(str(tmp_path), 3).workers == 3
    assert resources(str(tmp_path), None).workers >= 1
    assert resources("memory://root", None).disk_free is None
