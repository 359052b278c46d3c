"""The result of dedup depends on its input and configuration alone."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from datakit.dedup import stage
from datakit.engine.task import Output, Plan, TaskResult
from tests.support.dedup.dedup_inputs import Deduplicated, dedup_step, deduplicate, id_of, run_step, write_source
from tests.support.dedup.edge_files import ROUNDS
from tests.support.dedup.made_up_texts import check_conservation, mixed_sources, text_of
from tests.support.engine.exchange_runs import MERGES
from tests.support.engine.inline import run_task_inline


def test_containment_removes_included_documents(tmp_path: Path) -> None:
    whole = text_of(7, 300)
    part = " ".join(whole.split()[:230])
    sources = [write_source(tmp_path, "s", [whole, part, *(text_of(i) for i in range(50, 60))])]
    assert not deduplicate(tmp_path / "jaccard", sources).attributes()
    for seed in range(20):  # a pair with similarity 0.76 is a candidate in four of five cases
        config = stage.Config(measure="containment", threshold=0.95, seed=seed)
        rows = deduplicate(tmp_path / f"containment-{seed}", sources, config).attributes()
        if rows:
            assert [row["id"] for row in rows] == [id_of(part)]
            assert rows[0]["jaccard"] == pytest.approx(226 / 296)
            return
    pytest.fail("never a candidate")


def test_short_documents_stay_and_are_counted(tmp_path: Path) -> None:
    texts = ["a b c d e f", "a b c d e f g h", "A b c d e f g h", *(text_of(i) for i in range(5))]
    result = deduplicate(tmp_path, [write_source(tmp_path, "s", texts)])
    assert not result.attributes()
    assert result.manifest.counters["dedup/too_short"] == 3
    check_conservation(result)


@pytest.mark.parametrize("texts", [[], ["only one"], [text_of(1)]])
def test_input_without_duplicates_loses_nothing(tmp_path: Path, texts: list[str]) -> None:
    result = deduplicate(tmp_path, [write_source(tmp_path, "a", texts, bits=1), write_source(tmp_path, "b", [])])
    assert result.manifest.totals.rows == 0
    assert len(result.manifest.partitions) == 3
    check_conservation(result)


def attribute_bytes(result: Deduplicated) -> list[bytes]:
    """Read the attribute files."""
    return [Path(result.directory, partition.path).read_bytes() for partition in result.manifest.partitions]


def shuffled(plan: Plan, directory: str, seed: int) -> tuple[Output, list[TaskResult]]:
    """Run a plan as workers would: the tasks of a phase in any order, results in task order."""
    everything: list[TaskResult] = []
    try:
        phase = next(plan)
        while True:
            order = random.Random(seed).sample(range(len(phase.tasks)), len(phase.tasks))
            done = {i: run_task_inline(phase.tasks[i], phase, directory) for i in order}
            results = [done[i] for i in range(len(phase.tasks))]
            everything += results
            phase = plan.send(results)
    except StopIteration as stop:
        return stop.value, everything


def test_result_is_independent_of_task_cuts_and_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = mixed_sources(tmp_path)
    step = dedup_step(tmp_path / "dedup", sources, stage.Config(max_removal=1.0))
    whole = run_step(step)
    check_conservation(whole)
    reasons = [row["reason"] for row in whole.attributes()]
    assert reasons.count("exact") > 30
    assert reasons.count("fuzzy") > 30
    monkeypatch.setattr(stage, "TASK_BYTES", 2000)
    monkeypatch.setattr("datakit.engine.partition_grouping.LARGEST", 2000)
    monkeypatch.setattr("datakit.engine.partition_grouping.SMALLEST", 2000)
    monkeypatch.setattr("datakit.dedup.clusters.bands.FOLD_ROWS", 50)
    monkeypatch.setattr("datakit.dedup.exact_duplicates.TARGET_BYTES", 500)
    for name, size in (ROUNDS | MERGES).items():
        monkeypatch.setattr(name, size)
    small = replace(step, directory=str(tmp_path / "small"))
    output, results = shuffled(stage.plan(small), small.directory, 4)
    assert len(results) > 60, "many more tasks"
    assert attribute_bytes(whole) == [Path(small.directory, entry.path).read_bytes() for entry in output.partitions]
    assert output.details == whole.manifest.details
    again = replace(step, directory=str(tmp_path / "again"))
    output, _ = shuffled(stage.plan(again), again.directory, 9)
    assert attribute_bytes(whole) == [Path(again.directory, entry.path).read_bytes() for entry in output.partitions]


def test_planning_does_not_import_numba() -> None:
    """The command line starts quickly: only tasks import numba."""
    code = "import sys, datakit.dedup.stage, datakit.dedup.minhash.signatures_stage; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0.0}, "threshold is 0.0"),
        ({"threshold": 1.2}, "threshold is 1.2"),
        ({"measure": "jacard"}, "did you mean 'jaccard'"),
        ({"prefer": ("longst",)}, "did you mean 'longest'"),
        ({"bands": 0}, "bands is 0; it must be from 1 to 100"),
        ({"ngram": 65}, "ngram is 65"),
        ({"max_removal": 2.0}, "max_removal is 2.0"),
        ({"max_comparisons": 0}, "max_comparisons is 0"),
        ({"task_memory": 100}, "task_memory is 100; it must be at least 268435456 bytes"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stage.Config(**settings)
