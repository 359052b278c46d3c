"""The record that really caused a death is named, and no other record is skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.consolidate import stage as consolidate
from datakit.engine.executor import Attempt, Cause, Outcome, Verdict
from datakit.engine.scheduler.finish import read_quarantine
from datakit.engine.scheduler.retry_policy import ALL_MEMORY, TaskHistory, judge, next_attempt
from datakit.engine.task import ALL_RECORDS, QuarantinedRecord, RecordRange, Task, Tolerance
from datakit.errors import PartialError, StepFailedError
from datakit.normalize import stage as normalize
from datakit.storage import parquet
from tests.support.caches import clean
from tests.support.engine import poison_tasks
from tests.support.engine.poison_tasks import digests
from tests.support.engine.runs import (
    attempts,
    run,
    run_step_of,
)
from tests.support.faults.poisoned import poisoned
from tests.support.normalize.sources import normalize_step
from tests.support.partitions import identity, step, words


def test_exception_names_its_record_but_does_not_skip_it(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match=r"error after 2 attempts: KeyError .*records\.txt:57") as caught:
        run(tmp_path, digests(20, {57: "raise"}, Tolerance(5)))
    assert "secret" not in str(caught.value)


def test_second_bad_record_needs_two_more_deaths(tmp_path: Path) -> None:
    run(tmp_path, digests(1, {3: "segfault", 4: "exit"}, Tolerance(2)), workers=1)
    assert [line.cause for line in attempts(tmp_path)] == [*[Cause.CRASH] * 4, Cause.DONE]


def test_skipped_record_is_not_blamed_again(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match=r"crash after 4 attempts: SIGSEGV.*.*records\.txt:4"):
        run(tmp_path, poison_tasks.readings(6, 4, Tolerance(100)))
    assert len(attempts(tmp_path)) == 5 + 4


def test_reader_crash_is_not_blamed_on_the_previous_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 1)  # as with documents of many megabytes
    texts = words(1, 8)
    inputs = clean(tmp_path / "n", {"novels": texts}, leaving={"novels": {identity(texts[0]): ["exact"]}})
    wanted = step(tmp_path / "out", "consolidate", inputs, max_quarantined=20)
    with pytest.raises(
        StepFailedError, match=r"part-00000-of-00001\.parquet: crash after 2 attempts: SIGSEGV"
    ) as caught:
        run_step_of(wanted, poisoned(consolidate.plan(wanted), fault="break_row_group"))
    assert "caused the failure" not in str(caught.value)


def test_single_document_row_group_that_kills_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": words(1, 8)}), tmp_path / "in" / "long.parquet", row_group_size=1)
    made = normalize_step(tmp_path / "out", str(tmp_path / "in"))
    made = replace(made, operations={**made.operations, "max_quarantined": 1})
    manifest = run_step_of(made, poisoned(normalize.plan(made), fault="break_row_group"))
    assert manifest.totals.rows == 7
    (skipped,) = read_quarantine(made.directory)
    assert (skipped.file, skipped.position, skipped.reason) == ("long.parquet", 3, "crash")


def test_memory_death_at_a_skipped_record_gets_the_whole_machine_once() -> None:
    """Its reader has to decode the record to pass over it; if that fails, the reader is told to give up."""
    first = Attempt(Task("a", "module:function", {}), "route", "step", 1, 1, 100)
    history = TaskHistory(skip=[QuarantinedRecord("in.parquet", 5, "memory")])
    died = Outcome.of(first, Cause.MEMORY, in_progress=RecordRange("in.parquet", 5, 7))
    assert judge(history, died) is Verdict.RETRY
    again = next_attempt(first, history, 100)
    assert (again.memory_bytes, again.exclusive) == (ALL_MEMORY, True)
    assert again.own_child and not first.own_child, "a retry never runs in a child that has run another attempt"
    assert judge(history, died) is Verdict.RETRY
    last = next_attempt(again, history, 100)
    assert (last.memory_bytes, last.exclusive) == (400, True)
    assert {RecordRange("in.parquet", 5, 7), ALL_RECORDS} == set(last.try_singly)
    assert judge(history, died) is Verdict.FAIL
