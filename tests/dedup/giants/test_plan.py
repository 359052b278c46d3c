"""Giant components get the verdicts, counters and sizes that one task would give them, however they are cut."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup import stage
from datakit.dedup.giant_rows import EXCHANGE
from datakit.dedup.giants import kernels, plan, prober
from datakit.dedup.phase_data import Described, Judged, Labelled, Routed, Shared, details_of
from datakit.dedup.report import cluster_report
from datakit.dedup.verification import kernels as verify_kernels
from datakit.dedup.verification import run_kernels, verify
from datakit.dedup.verification.cluster_shingles import schema
from datakit.dedup.verification.rules import MEASURES
from datakit.engine.exchange.exchange import ExchangeWriter, read_buckets
from datakit.engine.exchange.row_buckets import RowBuckets
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step, TaskContext, TaskResult
from tests.support.dedup.dedup_inputs import dedup_step, write_source
from tests.support.dedup.made_up_texts import edited, mixed_sources, text_of
from tests.support.engine.inline import run_task_inline
from tests.support.engine.runs import run_step_of

BANDS = 3
Row = tuple[int, int, int, int, frozenset[int], tuple[int, ...]]  # component, high, low, length, shingles, keys
SMALL = {
    "datakit.dedup.giants.cut.CUT_ROWS": 3,
    "datakit.dedup.giants.retained.SORTED_ROWS": 2,
    "datakit.dedup.giants.prober.OUTCOME_WORDS": 1,
    "datakit.dedup.verification.arrange.SORTED_ROWS": 2,
    "datakit.dedup.verification.run_kernels.STEP_DOCUMENTS": 3,
    "datakit.dedup.giants.settle.WRITTEN_DOCUMENTS": 2,
    "datakit.engine.exchange.exchange.WINDOW_BYTES": 300,
}


def rows_of(chance: random.Random, count: int) -> list[Row]:
    """Return documents of two components, in any order, with few keys and shingles, so that lists of documents
    overflow, keys are crowded, and many candidates share as many bands.
    """
    values, found = chance.choice([1, 2, 4]), []
    for number in chance.sample(range(124), count):
        component, high, low = chance.choice([2, 2, 2, 40]), number // 31, number % 31
        shingles = frozenset(chance.choices(range(10), k=chance.randint(1, 8)))
        keys = tuple(chance.randint(0, values) * BANDS + band for band in range(BANDS))
        found.append((component, high, low, chance.randint(1, 3), shingles, keys))
    return found


def cuts_of(chance: random.Random, count: int) -> list[list[int]]:
    """Return the words at which blocks begin: lengths and ids."""
    sign = 1 << 63
    return sorted([sign - chance.randint(1, 3), chance.randint(0, 3), chance.randint(0, 30)] for _ in range(count))


def written(rows: list[Row], folder: Path, exchange: str) -> ExchangeWriter:
    """Write all rows to one bucket of an exchange."""
    component, high, low, length, shingles, keys = zip(*rows, strict=True)
    lists = [pa.array(keys, pa.list_(pa.uint64(), BANDS)), pa.array(map(sorted, shingles), pa.large_list(pa.uint64()))]
    numbers = [component, range(len(rows)), high, low, [0] * len(rows), length]
    with ExchangeWriter(TaskContext(str(folder), folder), exchange, "0", 1, 2000) as writer:
        writer.write(pa.table([*map(pa.array, numbers), *lists], schema=schema(BANDS, [])), np.zeros(len(rows), int))
    return writer


def verdicts(results: list[TaskResult], described: list[Judged], folder: Path) -> tuple[list[dict[str, Any]], Any, Any]:
    """Return the verdicts by row, the counters and the report that these tasks gave."""
    runs = [run for result in results for run in result.details["runs"]]
    tables = read_buckets(str(folder), runs, 0, 1, folder)
    found = sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["row"])
    counters = Counter[str]()
    for result in results:
        counters.update(result.counters)
    return found, counters, cluster_report(described)


def in_one_task(rows: list[Row], shared: Shared, folder: Path) -> tuple[list[dict[str, Any]], Any, Any]:
    runs = written(rows, folder, "shingles").runs
    common = msgspec.to_builtins(replace(shared, runs=runs))
    result = verify.judge({"bucket": 0}, common, TaskContext(str(folder), folder))
    return verdicts([result], details_of([result], Judged), folder)


def in_blocks(
    rows: list[Row], cuts: list[list[int]], shared: Shared, folder: Path
) -> tuple[tuple[list[dict[str, Any]], Counter[str], Any], list[Phase]]:
    """Judge all components as giant ones, all cut at the same words."""
    writer = written(rows, folder, EXCHANGE)
    described = []
    for component in sorted({row[0] for row in rows}):
        ids = [row[1:3] for row in rows if row[0] == component]
        described.append(Described(component, len(ids), *min(ids), cuts))
    routed = TaskResult(writer.outputs, details=msgspec.to_builtins(Routed([], writer.runs, described)))
    step, phases, everything = Step("dedup", "test", str(folder), "1" * 32, {}), list[Phase](), list[TaskResult]()
    work = plan.judge_giants(step, [routed], shared)
    try:
        phase = next(work)
        while True:
            phases.append(phase)
            results = [run_task_inline(task, phase, str(folder)) for task in reversed(phase.tasks)][::-1]
            everything += results
            phase = work.send(results)
    except StopIteration as stop:
        judged, reported = stop.value
    found, _, report = verdicts(judged, reported, folder)
    counters = Counter[str]()
    for result in everything:
        counters.update(result.counters)
    return (found, counters, report), phases


def shared_of(rows: list[Row], threshold: float, measure: str, most: int) -> Shared:
    return Shared(RowBuckets(len(rows), 1), [("s", 0)], BANDS, 5, threshold, measure, ("longest",), most)


@given(
    seed=st.integers(0, 2**32),
    counts=st.tuples(st.integers(1, 60), st.integers(0, 5)),
    rules=st.tuples(st.sampled_from([0.3, 0.5, 0.8]), st.sampled_from(MEASURES), st.integers(1, 3)),
    sizes=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([{}, SMALL])),
)
@settings(max_examples=40, deadline=None)
def test_blocks_give_the_verdicts_and_counters_of_one_task(
    seed: int,
    counts: tuple[int, int],
    rules: tuple[float, str, int],
    sizes: tuple[int, dict[str, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("giants")
    rows, cuts = rows_of(chance, counts[0]), cuts_of(chance, counts[1])
    shared = shared_of(rows, *rules)
    with ExitStack() as stack:
        stack.enter_context(patch("datakit.dedup.verification.rules.LISTED_PER_COMPARISON", sizes[0]))
        stack.enter_context(patch("datakit.dedup.giants.plan.splitters", lambda sample, blocks: sample))
        for name, size in sizes[1].items():
            stack.enter_context(patch(name, size))
        (folder / "whole").mkdir()
        (folder / "blocks").mkdir()
        expected = in_one_task(rows, shared, folder / "whole")
        found, phases = in_blocks(rows, cuts, shared, folder / "blocks")
    assert found == expected
    turns = [f"{name}-{number}" for number in range(len(cuts) + 1) for name in ("settle", "probe")]
    assert [phase.name for phase in phases] == ["blocks", *turns[:-1]]


def test_every_giant_component_is_found() -> None:
    """A component that a task does not report has few documents there."""
    with patch("datakit.dedup.giants.plan.GIANT", 100):
        parts = [Labelled([], 500, 9, [(7, 80), (3, 25)]), Labelled([], 500, 9, [(3, 26), (5, 50)])]
        assert plan.giants_among(parts) == [(3, 51), (7, 80)]
        assert plan.giants_among([]) == []


def test_blocks_grow_with_their_component() -> None:
    sizes = [plan.GIANT * factor for factor in (1, 5, 8, 20, 100)]
    counts = [plan.block_count(size) for size in sizes]
    assert counts == [4, 20, 32, 32, 32]
    assert plan.block_count(2000 * plan.GIANT) == 2000 * plan.GIANT // plan.LARGEST_BLOCK


def near_copies(root: Path) -> Step:
    """Return a dedup step with one component of 60 documents, and several small ones."""
    family = [edited(text_of(1000), seed, 1 + seed % 25) for seed in range(60)]
    sources = [*mixed_sources(root), write_source(root, "d", family, bits=1)]
    return dedup_step(root / "dedup", sources, stage.Config(max_removal=1.0, max_comparisons=3, prefer=("source",)))


def files_of(step: Step) -> dict[str, bytes]:
    """Return the files of a finished step."""
    folder = Path(step.directory)
    paths = [folder / "manifest.json", *(folder / "data").rglob("*.parquet")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


class StopAt(Observer):
    """Interrupts the run when a certain phase starts, and notes all phases."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self.seen: list[str] = []

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        self.seen.append(phase.name)
        if phase.name == self._phase:
            raise KeyboardInterrupt


def test_a_run_that_is_stopped_anywhere_writes_the_files_of_one_that_judges_in_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = near_copies(tmp_path)
    run_step_of(step, stage.plan(step), observer=(whole := StopAt("")))
    assert "blocks" not in whole.seen
    monkeypatch.setattr("datakit.engine.scheduler.drops.DROP_BYTES", 1)
    for name, size in {"GIANT": 40, "MOST_BLOCKS": 5}.items():
        monkeypatch.setattr(plan, name, size)
    again = replace(step, directory=str(tmp_path / "again"))
    for stop in ("settle-0", "probe-0", "settle-2", "probe-3", "attributes"):
        with pytest.raises(KeyboardInterrupt):
            run_step_of(again, stage.plan(again), observer=StopAt(stop))
    run_step_of(again, stage.plan(again))
    assert files_of(again) == files_of(step)
    assert not (tmp_path / "again" / "exchange").exists()


def test_no_task_compiles_a_kernel_after_warming_up(tmp_path: Path) -> None:
    run_kernels.warm()
    prober.warm()
    compiled = [
        *(kernels.list_retained, kernels.probe_documents),
        *(verify_kernels.verify_documents, verify_kernels.copy_lists),
    ]
    before = [len(kernel.signatures) for kernel in compiled]
    rows = [(2, 0, number, 1, frozenset({number % 7, 1}), (number % 3, 5, 9)) for number in range(20)]
    in_blocks(rows, [[2**63 - 1, 0, 8]], shared_of(rows, 0.5, "jaccard", 2), tmp_path)
    assert [len(kernel.signatures) for kernel in compiled] == before
