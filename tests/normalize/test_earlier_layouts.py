"""A step that was begun with another layout of its exchange, as by an earlier version, ends with the same files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from datakit.engine.exchange import run_names
from datakit.engine.executor import Outcome, Verdict
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.task import Phase, Step
from datakit.normalize import stage
from datakit.normalize.readers import slices
from tests.support.engine.exchange_runs import MERGES
from tests.support.engine.inline_executor import InlineExecutor
from tests.support.normalize.sources import normalize, normalize_step, write_lines


class Watcher(Observer):
    """Interrupts the run after some attempts, and notes which runs are merged."""

    def __init__(self, attempts: int) -> None:
        self.left, self.merged = attempts, list[str]()

    def attempt_ended(self, outcome: Outcome, verdict: Verdict) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        self.merged += [run for task in phase.tasks for run in task.arguments.get("runs", ())]


def test_a_step_that_was_begun_with_runs_of_all_buckets_is_finished(tmp_path: Path) -> None:
    for number in range(8):
        records = [{"id": f"{number}-{n}", "text": f"text {n * number % 70}"} for n in range(60)]
        write_lines(tmp_path / "in" / f"{number}.jsonl", *records)
    settings: dict[str, Any] = {"partition_bytes": 500}
    with patch.object(slices, "SLICE_BYTES", 1500), patch.object(slices, "FILE_OVERHEAD", 0):
        step = normalize_step(tmp_path / "resumed", str(tmp_path / "in"), **settings)
        with patch.object(run_names, "MOST_BUCKETS", 1 << 20), pytest.raises(KeyboardInterrupt):
            run_step(step, stage.plan(step), InlineExecutor, Watcher(6))
        with ExitStack() as patches:
            for name, size in MERGES.items():
                patches.enter_context(patch(name, size))
            watcher = Watcher(0)
            run_step(step, stage.plan(step), InlineExecutor, watcher)
    coarse = ["-by-" in run for run in watcher.merged]
    assert any(coarse) and not all(coarse), "both kinds of runs were merged"
    whole = normalize(tmp_path / "whole", tmp_path / "in", **settings).files()
    assert {path: (Path(step.directory) / path).read_bytes() for path in whole} == whole
