"""A source that loses too many documents stops the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datakit.dedup import stage
from datakit.errors import StepFailedError
from tests.support.dedup.dedup_inputs import dedup_step, deduplicate, run_step, write_source
from tests.support.dedup.made_up_texts import text_of


def test_too_many_removals_stop_the_run(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(10)]
    sources = [write_source(tmp_path, "all", texts), write_source(tmp_path, "subset", texts[:5])]
    with pytest.raises(StepFailedError, match=r"'subset' would lose 5 of 5 documents \(5 exact, 0 fuzzy.*max_removal"):
        deduplicate(tmp_path / "stops", sources)
    assert deduplicate(tmp_path / "allowed", sources, stage.Config(max_removal=1.0)).manifest.totals.rows == 5


def test_raising_the_limit_repeats_no_task(tmp_path: Path) -> None:
    """The limit is an operation parameter that tasks never see, so a stopped run resumes where it was."""
    texts = [text_of(i) for i in range(10)]
    step = dedup_step(
        tmp_path, [write_source(tmp_path, "a", texts), write_source(tmp_path, "b", texts)], stage.Config()
    )
    plain = {name: value for name, value in step.parameters.items() if name != "max_removal"}
    seen = []
    for limit in (0.1, 1.0):
        phase = next(stage.plan(replace(step, parameters=plain, operations={"max_removal": limit, "workers": 3})))
        seen.append(phase)
    assert seen[0] == seen[1]
    with pytest.raises(StepFailedError, match=r"dedup\.max_removal = 0\.1 allows"):
        run_step(replace(step, parameters=plain, operations={"max_removal": 0.1}))
    assert run_step(replace(step, parameters=plain, operations={"max_removal": 1.0})).manifest.totals.rows == 10
