"""A task context announces records, tries suspects one by one, and names those to skip."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from datakit.engine.task import ALL_RECORDS, QuarantinedRecord, TaskContext, Tolerance, resolve

Event = tuple[str, int, int]


def context(events: list[Event], **settings: object) -> TaskContext:
    return TaskContext(
        "/nowhere",
        Path("/nowhere"),
        hold=lambda file, position, records: events.append((file, position, records)),
        release=lambda: events.append(("", 0, 0)),
        **settings,  # pyright: ignore[reportArgumentType]
    )


def test_batch_is_held_as_a_whole() -> None:
    events: list[Event] = []
    assert context(events).records("a", [3, 4, 9], lambda row: events.append(("tried", row, 1))) == (None, [])
    assert events == [("a", 3, 3)]


@pytest.mark.parametrize("suspects", [{("a", 4)}, {(ALL_RECORDS.file, ALL_RECORDS.position)}])
def test_suspect_batch_is_tried_one_by_one(suspects: set[tuple[str, int]]) -> None:
    events: list[Event] = []
    tried = context(events, try_singly=frozenset(suspects))
    tried.records("a", [3, 4], lambda row: events.append(("tried", row, 1)))
    assert events == [("a", 3, 1), ("tried", 0, 1), ("a", 4, 1), ("tried", 1, 1), ("a", 3, 2)]


def test_records_to_skip_are_masked_and_named() -> None:
    events: list[Event] = []
    skipping = context(events, skip={("b", 4): "crash"}, try_singly=frozenset({("b", 4)}))
    rows, skipped = skipping.records(["a", "b"], [3, 4], lambda row: events.append(("tried", row, 1)))
    assert rows is not None and np.array_equal(rows, [True, False])
    assert skipped == [QuarantinedRecord("b", 4, "crash")]
    assert ("tried", 1, 1) not in events and ("tried", 0, 1) in events


def test_nothing_is_held_if_all_records_are_skipped() -> None:
    events: list[Event] = []
    context(events, skip={("a", 3): "crash"}).records("a", [3], lambda row: None)
    assert events == [("", 0, 0)]


def test_tolerance_is_a_number_or_a_share() -> None:
    assert Tolerance.of({}).allowed(1_000) == 0
    assert Tolerance.of({"max_quarantined": 5, "quarantine": ["a:3"]}) == Tolerance(5, ("a:3",))
    assert Tolerance.of({}, "signatures").key == "dedup.max_quarantined"
    assert (Tolerance(5).allowed(1_000), Tolerance(0.01).allowed(1_000)) == (5, 10)


def test_function_paths_have_one_spelling() -> None:
    """Otherwise, two spellings of one function would give two fingerprints, and a module would pass for a function."""
    assert resolve("os:getpid") is os.getpid
    for path in ("os.getpid", "os", "os:path.join", "os:no_such_name"):
        with pytest.raises((ImportError, AttributeError)):
            resolve(path)
