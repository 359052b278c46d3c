"""The labels depend on the edges alone, not on how many rounds and tasks find them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup.clusters import component_phases, node_kernels, node_tables
from datakit.dedup.clusters.component_phases import label_phases
from datakit.dedup.clusters.components import spanning_forest
from datakit.dedup.row_buckets import row_buckets
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskResult
from tests.support.dedup.edge_files import ROUNDS, chain, edge_step, parts_of, read_labels, write_forests
from tests.support.engine.inline import run_task_inline
from tests.support.engine.runs import run_step_of

Forest = tuple[np.ndarray, np.ndarray]
MEMORY, GIANT = 512 << 20, 1 << 20
EDGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=80)


def run(forests: Sequence[Forest], parts: int, rows: int, **sizes: int) -> tuple[dict[int, int], list[Phase], Counts]:
    """Label all rows. Return the labels, the phases that ran, and the numbers of clustered rows and components."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        for name, size in sizes.items():
            patches.enter_context(patch(name, size))
        directory, phases = Path(folder), list[Phase]()
        cut = parts_of(rows, parts)
        plan = label_phases(edge_step(directory), write_forests(directory, forests), row_buckets(cut), MEMORY, GIANT)
        results: Sequence[TaskResult] = []
        try:
            phase = next(plan)
            while True:
                phases.append(phase)
                results = [run_task_inline(task, phase, folder) for task in reversed(phase.tasks)][::-1]
                phase = plan.send(results)
        except StopIteration as stop:
            assert list(stop.value) == results
        counts = {name: sum(one.counters[f"dedup/{name}"] for one in results) for name in ("clustered", "clusters")}
        return read_labels(directory, results, cut), phases, counts


Counts = dict[str, int]


def oracle(forests: Sequence[Forest]) -> tuple[dict[int, int], Counts]:
    """Return the labels and counts that union-find on all edges gives."""
    rows, roots = spanning_forest(*map(np.concatenate, zip(*forests, strict=True)))
    labels = dict(zip(rows.tolist(), roots.tolist(), strict=True))
    labels |= {root: root for root in labels.values()}
    return labels, {"clustered": len(labels), "clusters": len(set(labels.values()))}


def as_forests(edges: list[tuple[int, int]], size: int) -> list[Forest]:
    pairs = np.array(edges, np.uint64).reshape(-1, 2)
    forests = [spanning_forest(*pairs[i : i + size].T.copy()) for i in range(0, len(pairs), size)]
    return [forest for forest in forests if len(forest[0])]


@given(EDGES, st.integers(1, 30), st.integers(1, 4), st.integers(1, 20))
@settings(max_examples=12, deadline=None)
def test_rounds_give_the_labels_of_one_task(edges: list[tuple[int, int]], size: int, parts: int, most: int) -> None:
    forests = as_forests(edges, size)
    if not forests:
        return
    single, phases, counts = run(forests, parts, 61)
    assert [phase.name for phase in phases] == ["labels"]
    assert (single, counts) == oracle(forests)
    sizes = ROUNDS | {"datakit.dedup.clusters.component_phases.MOST_NODES": most}
    assert run(forests, parts, 61, **sizes)[::2] == (single, counts)


def test_a_long_chain_a_wide_star_and_many_pairs() -> None:
    """The phases are those that the module's docstring lists, and later rounds have fewer tasks."""
    shuffled = np.random.default_rng(1).permutation(5000).astype(np.uint64)
    spokes = np.arange(5001, 10_000, dtype=np.uint64)
    hub = np.full_like(spokes, 5000)
    pairs = np.arange(10_001, 15_000, 2, dtype=np.uint64)
    forests = [chain(shuffled[:3000]), chain(shuffled[2999:]), (spokes, hub), (spokes[::2], hub[::2])]
    forests += [(pairs, pairs - np.uint64(1))]
    sizes = {
        "datakit.dedup.clusters.component_phases.MOST_NODES": 300,
        "datakit.dedup.clusters.component_phases.TASK_BYTES": 40_000,
        "datakit.dedup.clusters.pairs.PIECE_ROWS": 500,
    }
    node_tables.warm()
    kernels = [getattr(node_kernels, name) for name in ("fold", "look_up", "copy", "join", "roots")]
    compiled = [len(kernel.signatures) for kernel in kernels]
    labels, phases, counts = run(forests, 3, 15_000, **sizes)
    assert [len(kernel.signatures) for kernel in kernels] == compiled, "no task compiles a kernel after warming up"
    assert (labels, counts) == oracle(forests)
    names, tasks = [phase.name for phase in phases], [len(phase.tasks) for phase in phases]
    rounds = range(1, 1 + sum(name.startswith("large-") for name in names))
    assert 2 <= len(rounds) <= 6
    stars = [f"{star}-{number}" for number in rounds for star in ("large", "small")]
    ends = ["components", *(f"resolve-{number}" for number in reversed(rounds[1:])), "labels"]
    assert names == ["links", *stars, *ends]
    assert 8 <= tasks[1] > tasks[names.index("components") - 1]
    assert phases[-1].memory_bytes == MEMORY


@pytest.mark.parametrize("memory", [256 << 20, 512 << 20, 4 << 30])
def test_budgets_do_not_exceed_the_memory_of_a_task(memory: int) -> None:
    most = component_phases.nodes_per_task(memory)
    assert component_phases.FIXED_BYTES + most * component_phases.NODE_BYTES <= memory
    assert most == component_phases.MOST_NODES or most * component_phases.NODE_BYTES >= memory / 5


def test_documents_that_fit_get_one_task_with_a_budget_for_their_nodes() -> None:
    forests = [chain(np.arange(1000, dtype=np.uint64))]
    _, (phase,), _ = run(forests, 1, 1000)
    assert len(phase.tasks) == 1
    assert phase.memory_bytes < component_phases.FIXED_BYTES + (1 << 20)


def test_neither_budget_nor_shared_data_grows_with_the_number_of_parts(tmp_path: Path) -> None:
    connected = write_forests(tmp_path, [chain(np.arange(1000, dtype=np.uint64))])
    buckets = (row_buckets(parts_of(4000, count)) for count in (1, 4000))
    few, many = (next(label_phases(edge_step(tmp_path), connected, one, MEMORY, GIANT)) for one in buckets)
    assert many.memory_bytes == few.memory_bytes
    assert len(str(many.shared)) < len(str(few.shared)) + 10


class StopAt(Observer):
    """Interrupts the run when a certain phase starts."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        if phase.name == self._phase:
            raise KeyboardInterrupt


def test_an_interrupted_search_continues_with_other_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the first run dropped are written again if the second run needs them."""
    monkeypatch.setattr("datakit.engine.scheduler.drops.DROP_BYTES", 1)
    monkeypatch.setattr("datakit.dedup.clusters.component_phases.TASK_BYTES", 12_000)
    forests = [chain(np.random.default_rng(1).permutation(1500).astype(np.uint64))]
    parts, labels = parts_of(1500, 2), dict[int, int]()

    def plan(memory: int) -> Plan:
        tasks = [{"rows": 1500, "file": number, "files": 4} for number in range(4)]
        work = tuple(Task(f"{one['file']}", "tests.support.dedup.edge_files:write_links", one) for one in tasks)
        connected = yield Phase("buckets", work)
        results = yield from label_phases(edge_step(tmp_path), connected, row_buckets(parts), memory, GIANT)
        labels.update(read_labels(tmp_path, results, parts))
        return Output([], pa.schema([]))

    monkeypatch.setattr("datakit.dedup.clusters.component_phases.MOST_NODES", 250)
    for memory, stop in ((512 << 20, "small-2"), (600 << 20, "resolve-2"), (512 << 20, "none")):
        with nullcontext() if stop == "none" else pytest.raises(KeyboardInterrupt):
            run_step_of(edge_step(tmp_path), plan(memory), observer=StopAt(stop))
    assert labels == oracle(forests)[0]
