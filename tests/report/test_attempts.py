"""The work of stages is summed over ledgers, and the timeline of a run has a bounded size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datakit.lineage.graph import FoundStep
from datakit.report.attempts import BINS, MOST_SPANS, _busy, read_work
from datakit.report.subject import subject_of
from tests.support.report.made_up_root import DRIVER, write_root

times = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), min_size=1, max_size=20)


@given(times)
def test_running_attempts_are_the_overlap_with_each_bin(attempts: list[tuple[float, float]]) -> None:
    ends, seconds = (np.array(values) for values in zip(*attempts, strict=True))
    width = max(float(ends.max()), 1e-3) / BINS
    expected = [
        sum(max(0.0, min(end, (bin + 1) * width) - max(0.0, end - took, bin * width)) for end, took in attempts) / width
        for bin in range(BINS)
    ]
    assert np.allclose(_busy(ends, seconds, 0.0, width), expected, atol=1e-6)


def test_work_is_summed_over_the_steps_of_a_stage(tmp_path: Path) -> None:
    subject = subject_of(str(write_root(tmp_path, [f"s{number}" for number in range(30)], 4)))
    work = read_work(subject.steps, None)
    found = {stage.stage: stage for stage in work.stages}
    assert found["normalize"].attempts == 30 * (4 + 1)
    assert found["normalize"].failures == {"memory": 30}
    assert found["normalize"].shares[10] == 30, "those above the budget"
    assert found["normalize"].cpu_seconds == 30 * 4 * 0.25
    assert found["tokenize"].peak_memory > found["tokenize"].budget


def test_timeline_shows_few_spans_of_many_steps(tmp_path: Path) -> None:
    subject = subject_of(str(write_root(tmp_path, [f"s{number}" for number in range(60)], 2)))
    timeline = read_work(subject.steps, None).timeline
    assert timeline is not None and timeline.run == DRIVER
    normalize = [span for span in timeline.spans if span.stage == "normalize"]
    assert len(normalize) <= MOST_SPANS
    assert sum(span.steps for span in normalize) == 60
    assert all(len(values) == BINS for values in timeline.busy.values())


def test_attempts_of_other_runs_do_not_count_for_a_run(tmp_path: Path) -> None:
    subject = subject_of(str(write_root(tmp_path, ["one"], 2)))
    assert read_work(subject.steps, "another-run").stages == ()
    assert read_work(subject.steps, DRIVER) == read_work(subject.steps, None)


def test_step_without_a_ledger_has_no_work(tmp_path: Path) -> None:
    assert read_work([FoundStep(str(tmp_path), "normalize", "", None)], None).timeline is None
