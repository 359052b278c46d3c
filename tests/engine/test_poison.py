"""A record that kills its task is named, dropped only where that is allowed, and nobody else notices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.engine.executor import Attempt, Cause
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.ledger.status import read_status
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.task import Plan, Task, Tolerance, encode
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import PartialError, StepFailedError
from datakit.storage.manifest import Manifest
from tests.support.engine import poison_tasks
from tests.support.engine.poison_tasks import digests

KILLERS = ("bomb", "segfault", "exit", "loop")
CAUSES = {"bomb": "memory", "segfault": "crash", "exit": "crash", "loop": "hang"}


def run(directory: Path, plan: Plan, workers: int = 2, memory_bytes: int | None = None) -> Manifest:
    """A plan of poison_tasks, in `directory`."""
    local = LocalExecutor(workers, memory_bytes)
    try:
        return run_step(poison_tasks.poison_step(str(directory)), plan, lambda: local, RunOptions(), SilentObserver())
    finally:
        local.close()


def attempts(directory: Path) -> list[AttemptLine]:
    """All that the ledger knows."""
    return [line for line in read_ledger(str(directory)) if isinstance(line, AttemptLine)]


def files(directory: Path) -> dict[str, bytes]:
    """Every file of a step but the ledger's."""
    found = (path for path in directory.rglob("*") if path.is_file() and "ledger" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.mark.parametrize("killer", KILLERS)
def test_a_record_that_kills_is_named_and_all_other_tasks_are_done(tmp_path: Path, killer: str) -> None:
    with pytest.raises(
        PartialError, match=r"record records\.txt:57 caused the failure; raise max_quarantined"
    ) as caught:
        run(tmp_path, digests(20, {57: killer}))
    assert caught.value.exit_code == 3
    (failure,) = json.loads((tmp_path / "partial.json").read_text())["failed"]
    assert failure["record"] == {"file": "records.txt", "position": 57, "cause": CAUSES[killer]}
    assert {line.key for line in attempts(tmp_path) if line.cause is Cause.DONE} == {
        f"{number:05d}" for number in range(20) if number != 5
    }


@pytest.mark.parametrize("killer", KILLERS)
def test_it_is_dropped_where_that_is_allowed_and_the_next_run_retries_only_its_task(
    tmp_path: Path, killer: str
) -> None:
    with pytest.raises(PartialError):
        run(tmp_path, digests(20, {57: killer}))
    before = len(attempts(tmp_path))
    manifest = run(tmp_path, digests(20, {57: killer}, Tolerance(1)))
    assert {line.key for line in attempts(tmp_path)[before:]} == {"00005"}
    assert (manifest.totals.rows, manifest.quarantine.records) == (199, 1)
    assert manifest.identity != manifest.fingerprint
    assert (tmp_path / "quarantine" / "records.jsonl").read_text() == (
        f'{{"file":"records.txt","position":57,"reason":"{CAUSES[killer]}","records":1}}\n'
    )
    assert not (tmp_path / "partial.json").exists()


def test_what_is_dropped_does_not_depend_on_workers_or_batches(tmp_path: Path) -> None:
    poison = {3: "segfault", 4: "exit", 57: "bomb", 58: "segfault", 199: "loop"}
    one = run(tmp_path / "one", digests(20, poison, Tolerance(5)), workers=1)
    run(tmp_path / "four", digests(20, poison, Tolerance(0.025)), workers=4)
    assert one.quarantine.records == 5
    ours, theirs = files(tmp_path / "one"), files(tmp_path / "four")
    assert ours == theirs
    run(tmp_path / "coarse", digests(20, poison, Tolerance(5), batch=10))
    assert files(tmp_path / "coarse") == ours


def test_a_listed_record_needs_no_other_permission(tmp_path: Path) -> None:
    poison = {57: "segfault", 130: "exit"}
    with pytest.raises(PartialError, match=r"records\.txt:130") as caught:
        run(tmp_path, digests(20, poison, Tolerance(0, ("records.txt:57",))))
    assert "records.txt:57" not in str(caught.value)
    listed = Tolerance(0, ("records.txt:57", "records.txt:130"))
    assert run(tmp_path, digests(20, poison, listed)).quarantine.records == 2


def test_a_share_counts_all_records_of_the_phase(tmp_path: Path) -> None:
    poison: dict[int, str] = dict.fromkeys((1, 50, 51, 120), "segfault")
    assert run(tmp_path / "enough", digests(20, poison, Tolerance(0.02))).quarantine.records == 4
    with pytest.raises(PartialError, match="1 of 20 tasks failed"):
        run(tmp_path / "short", digests(20, poison, Tolerance(0.019)))


def test_a_library_that_always_crashes_stops_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match="the first 5 tasks of phase digest all failed with the same error"):
        run(tmp_path, digests(300, dict.fromkeys(range(3000), "segfault")))
    assert len(attempts(tmp_path)) < 40


def test_an_exception_is_no_killer_but_its_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        PartialError, match=r"error after 2 attempts: KeyError .*with records\.txt:57 in hand"
    ) as caught:
        run(tmp_path, digests(20, {57: "raise"}, Tolerance(5)))
    assert "secret" not in str(caught.value)


def test_memory_is_raised_twice_and_the_last_time_it_runs_alone(tmp_path: Path) -> None:
    plan = digests(20, {57: "bomb"}, seconds=0.01, memory_bytes=128 << 20)
    with pytest.raises(PartialError):
        run(tmp_path, plan, memory_bytes=512 << 20)
    lines = [line for line in attempts(tmp_path) if line.key == "00005"]
    assert [line.budget >> 20 for line in lines] == [128, 256, 512]
    assert {line.cause for line in lines} == {Cause.MEMORY}
    assert all(0.9 * line.budget < line.peak_memory < 1.1 * line.budget for line in lines)
    last = lines[-1]
    others = [line for line in attempts(tmp_path) if line.key != "00005"]
    began = last.time - last.seconds + 1.0  # the ledger hears of what ended before a little later, on a busy machine
    assert all(line.time <= began for line in others), "something ran beside it"


def test_what_hangs_lends_its_slot_and_the_others_are_done_meanwhile(tmp_path: Path) -> None:
    manifest = run(tmp_path, digests(20, {3: "loop"}, Tolerance(1), hang_seconds=8.0), workers=1)
    assert manifest.quarantine.records == 1
    lines = attempts(tmp_path)
    first_hang = next(line for line in lines if line.cause is Cause.HANG)
    assert lines.index(first_hang) == 19, "the others waited for it"


def test_a_second_poisoned_record_of_a_batch_needs_two_deaths_of_its_own(tmp_path: Path) -> None:
    run(tmp_path, digests(1, {3: "segfault", 4: "exit"}, Tolerance(2)), workers=1)
    assert [line.cause for line in attempts(tmp_path)] == [*[Cause.CRASH] * 4, Cause.DONE]


def test_a_hang_says_where_it_is(tmp_path: Path) -> None:
    local = LocalExecutor(1)
    shared = {"poison": {"3": "loop"}, "seconds": 0.0, "batch": 2}
    (tmp_path / "shared.msgpack").write_bytes(encode(shared))
    task = Task("only", "tests.support.engine.poison_tasks:digest_records", {"first": 0, "stop": 10})
    local.submit(Attempt(task, "test", str(tmp_path), 1, 1, 1 << 30, shared="shared.msgpack", hang_seconds=0.5))
    (outcome,) = local.wait(20)
    local.close()
    assert outcome.cause is Cause.HANG
    assert "no progress for 0.5 s after 0 records" in outcome.message
    assert "with records.txt:2 and 1 more in hand" in outcome.message
    assert "poison_tasks.py" in outcome.message and "in _loop" in outcome.message


def test_tiny_tasks_share_children_and_have_an_entry_each(tmp_path: Path) -> None:
    manifest = run(tmp_path, poison_tasks.naps(600, 0.001))
    assert manifest.details["children"] < 150
    lines = attempts(tmp_path)
    assert len(lines) == len({line.key for line in lines}) == 600
    assert all(line.cause is Cause.DONE and line.result is not None for line in lines)


def test_a_crash_in_a_batch_is_told_from_its_neighbours(tmp_path: Path) -> None:
    with pytest.raises(PartialError, match="1 of 400 tasks failed\n  000300: crash after 2 attempts: SIGSEGV"):
        run(tmp_path, poison_tasks.naps(400, 0.001, {300: "segfault"}))
    assert len({line.key for line in attempts(tmp_path) if line.cause is Cause.DONE}) == 399


def test_status_shows_peak_against_budget_and_what_was_left_out(tmp_path: Path) -> None:
    run(tmp_path, digests(20, {57: "bomb", 61: "segfault"}, Tolerance(2), memory_bytes=128 << 20))
    status = read_status(str(tmp_path))
    (phase,) = status.phases
    assert (phase.tasks, phase.done, phase.attempts) == (20, 20, 25)
    assert 0.9 * phase.budget < phase.peak_memory < 1.1 * phase.budget and phase.peak_resident > phase.peak_memory
    assert {task.key: task.quarantined for task in status.tasks if task.quarantined} == {"00005": 1, "00006": 1}
    assert all(task.budget for task in status.tasks)
