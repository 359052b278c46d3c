"""A crash outside any known record is narrowed down to one entry of the input."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.executor import Cause
from datakit.engine.ledger.status import read_status
from datakit.errors import StepFailedError
from tests.support.engine import poison_tasks
from tests.support.engine.runs import (
    attempts,
    run,
)

NAMES = [f"part-{number}" for number in range(13)]


def test_bisection_names_the_entry(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError, match=r"SIGSEGV.*; the cause is in part-9"):
        run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
    assert len(attempts(tmp_path)) <= 2 + 4


def test_half_killed_from_outside_is_retried(tmp_path: Path) -> None:
    (tmp_path / "external-kill").touch()
    with pytest.raises(StepFailedError, match=r"SIGSEGV.*; the cause is in part-9"):
        run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
    assert [line.cause for line in attempts(tmp_path)].count(Cause.KILLED) == 1


def test_result_of_a_half_is_not_reused(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(StepFailedError, match="the cause is in part-9"):
            run(tmp_path, poison_tasks.parts(NAMES, "part-9"))
        assert [task.state for task in read_status(str(tmp_path)).tasks] == ["failed"]
    (tmp_path / "mended").touch()
    assert [part.path for part in run(tmp_path, poison_tasks.parts(NAMES, "part-9")).partitions] == NAMES
