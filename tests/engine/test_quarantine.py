"""A record that kills its task is named, and skipped only if that is allowed. No other task is affected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.engine.executor import Cause
from datakit.engine.quarantine import require_allowed
from datakit.engine.task import QuarantinedRecord, TaskResult, Tolerance
from datakit.errors import PartialError
from tests.support.engine.poison_tasks import digests
from tests.support.engine.runs import (
    attempts,
    outputs,
    run,
)

KILLERS = ("bomb", "segfault", "exit", "loop")


CAUSES = {"bomb": "memory", "segfault": "crash", "exit": "crash", "loop": "hang"}


@pytest.mark.parametrize("killer", KILLERS)
def test_killing_record_is_named_then_skipped_if_allowed(tmp_path: Path, killer: str) -> None:
    with pytest.raises(PartialError, match=r"record records\.txt:57 caused the failure; set max_quar") as caught:
        run(tmp_path, digests(20, {57: killer}))
    assert caught.value.exit_code == 3
    (failure,) = json.loads((tmp_path / "partial.json").read_text())["failed"]
    assert failure["record"] == {"file": "records.txt", "position": 57, "cause": CAUSES[killer]}
    before = attempts(tmp_path)
    assert {line.key for line in before if line.cause is Cause.DONE} == {f"{n:05d}" for n in range(20) if n != 5}
    manifest = run(tmp_path, digests(20, {57: killer}, Tolerance(1)))
    assert {line.key for line in attempts(tmp_path)[len(before) :]} == {"00005"}
    assert (manifest.totals.rows, manifest.quarantine.records) == (199, 1)
    assert manifest.identity != manifest.fingerprint
    assert (tmp_path / "quarantine" / "records.jsonl").read_text() == (
        f'{{"file":"records.txt","position":57,"reason":"{CAUSES[killer]}","records":1}}\n'
    )
    assert not (tmp_path / "partial.json").exists()


def test_skipped_records_do_not_depend_on_workers_or_batches(tmp_path: Path) -> None:
    poison = {3: "segfault", 4: "exit", 57: "bomb", 58: "segfault", 199: "exit"}
    one = run(tmp_path / "one", digests(20, poison, Tolerance(5)), workers=1)
    run(tmp_path / "four", digests(20, poison, Tolerance(0.025)), workers=4)
    assert one.quarantine.records == 5
    ours, others = outputs(tmp_path / "one"), outputs(tmp_path / "four")
    assert ours == others
    run(tmp_path / "coarse", digests(20, poison, Tolerance(5), batch=10))
    assert outputs(tmp_path / "coarse") == ours


def test_listed_records_do_not_count(tmp_path: Path) -> None:
    poison = {57: "segfault", 130: "exit"}
    with pytest.raises(PartialError, match=r"records\.txt:130") as caught:
        run(tmp_path, digests(20, poison, Tolerance(0, ("records.txt:57",))))
    assert "records.txt:57" not in str(caught.value)
    listed = Tolerance(0, ("records.txt:57", "records.txt:130"))
    assert run(tmp_path, digests(20, poison, listed)).quarantine.records == 2


def test_share_counts_all_records_of_the_phase(tmp_path: Path) -> None:
    poison: dict[int, str] = dict.fromkeys((1, 50, 51, 120), "segfault")
    assert run(tmp_path / "enough", digests(20, poison, Tolerance(0.02))).quarantine.records == 4
    with pytest.raises(PartialError, match="1 of 20 tasks failed"):
        run(tmp_path / "short", digests(20, poison, Tolerance(0.019)))


def test_complaint_counts_listed_records_and_shows_the_others() -> None:
    records = [QuarantinedRecord("a.jsonl", position, "not JSON") for position in (10, 20, 30)]
    with pytest.raises(PartialError) as caught:
        require_allowed(Tolerance(0, ("a.jsonl:10", "a.jsonl:20")), [TaskResult(quarantined=tuple(records), records=9)])
    said = str(caught.value)
    assert said.startswith("1 record in addition to the 2 listed in `quarantine` cannot be used, but max_quarantined")
    assert "a.jsonl:30: not JSON" in said and "a.jsonl:10" not in said
