"""Who is to blame for a death that no record in work explains: the right one is named, and nobody else is dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.consolidate import stage as consolidate
from datakit.engine.executor import Cause
from datakit.engine.ledger.status import read_status
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.scheduler.finish import read_quarantine
from datakit.engine.task import Tolerance
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import PartialError, StepFailedError
from datakit.normalize import stage as normalize
from datakit.storage import parquet
from tests.engine.test_poison import attempts, run
from tests.support.engine import poison_tasks
from tests.support.faults.poisoned import poisoned
from tests.support.partitions import normalized, step, words
from tests.support.sources import normalize_step

NAMES = [f"part-{number}" for number in range(13)]


def test_without_a_record_in_hand_the_input_is_halved_to_name_the_entry(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match=r"SIGSEGV.*; the cause is in part-9"):
        run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
    assert len(attempts(tmp_path)) <= 2 + 4


def test_a_half_that_somebody_else_killed_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "foe").touch()
    with pytest.raises(StepFailedError, match=r"SIGSEGV.*; the cause is in part-9"):
        run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
    assert [line.cause for line in attempts(tmp_path)].count(Cause.KILLED) == 1


def test_what_the_halves_wrote_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(StepFailedError, match="the cause is in part-9"):
            run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
        assert [task.state for task in read_status(str(tmp_path)).tasks] == ["failed"]
    (tmp_path / "mended").touch()
    assert [part.path for part in run(tmp_path, poison_tasks.parts(NAMES, "part-9")).partitions] == NAMES


def test_a_record_that_kills_although_it_is_left_out_is_not_left_out_again(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match=r"crash after 4 attempts: SIGSEGV.*.*records\.txt:4"):
        run(tmp_path, poison_tasks.readings(6, 4, Tolerance(100)))
    assert len(attempts(tmp_path)) == 5 + 4


def test_what_kills_the_reader_is_not_blamed_on_the_document_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 1)  # as with documents of many megabytes
    wanted = step(
        tmp_path / "out", "consolidate", [normalized(tmp_path / "n", "novels", words(1, 8))], max_quarantined=20
    )
    local = LocalExecutor(1)
    try:
        with pytest.raises(
            StepFailedError, match=r"part-00000-of-00001\.parquet: crash after 2 attempts: SIGSEGV"
        ) as caught:
            plan = poisoned(consolidate.plan(wanted), fault="break_row_group")
            run_step(wanted, plan, lambda: local, RunOptions(), SilentObserver())
    finally:
        local.close()
    assert "caused the failure" not in str(caught.value)


def test_a_document_alone_in_its_row_group_that_kills_the_decoder_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": words(1, 8)}), tmp_path / "in" / "long.parquet", row_group_size=1)
    made = normalize_step(tmp_path / "out", str(tmp_path / "in"))
    made = replace(made, operations={**made.operations, "max_quarantined": 1})
    local = LocalExecutor(1)
    try:
        plan = poisoned(normalize.plan(made), fault="break_row_group")
        manifest = run_step(made, plan, lambda: local, RunOptions(), SilentObserver())
    finally:
        local.close()
    assert manifest.totals.rows == 7
    (gone,) = read_quarantine(made.directory)
    assert (gone.file, gone.position, gone.reason) == ("long.parquet", 3, "crash")


def test_a_run_that_goes_on_is_not_called_partial(tmp_path: Path) -> None:
    states: set[str] = set()

    class Looking(SilentObserver):
        def attempt_ended(self, outcome: object, verdict: object) -> None:
            states.add(read_status(str(tmp_path)).state)

    with pytest.raises(StepFailedError):
        run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
    assert read_status(str(tmp_path)).state == "partial"
    (tmp_path / "mended").touch()
    local = LocalExecutor(1)
    try:
        plan = poison_tasks.parts(NAMES, "part-9")
        run_step(poison_tasks.poison_step(str(tmp_path)), plan, lambda: local, RunOptions(), Looking())
    finally:
        local.close()
    assert states == {"unfinished"}
