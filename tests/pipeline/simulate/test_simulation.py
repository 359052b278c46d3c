"""A simulated run has the phases, tasks and written files of the real run of the same recipe on the same text."""

from __future__ import annotations

import ast
import tempfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import datakit
from datakit.dedup.giants.plan import block_count
from datakit.engine.exchange import merge
from datakit.engine.ledger.ledger import AttemptLine, PhaseLine, read_ledger
from datakit.engine.scheduler import drops
from datakit.engine.task import Phase, Step, Task
from datakit.errors import StepFailedError, UsageError
from datakit.pipeline.graph import build
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.pipeline.run_summary import RunResult
from datakit.pipeline.simulate.clock import Cluster
from datakit.pipeline.simulate.corpus import Corpus, generated, share
from datakit.pipeline.simulate.effects import PhaseOf, World
from datakit.pipeline.simulate.figures import Simulation
from datakit.pipeline.simulate.measured import measure
from datakit.pipeline.simulate.rates import RATES
from datakit.pipeline.simulate.simulation import simulate, simulate_graph
from datakit.pipeline.simulate.task_table import SIMULATORS, simulators
from datakit.recipe import load_recipe
from datakit.storage import locks
from tests.support.paths import REPOSITORY
from tests.support.stdlib_shelf import write_shelf

Counts = dict[tuple[str, str | None, str], tuple[int, int]]  # (stage, source, phase) -> (tasks, files written)
SETTINGS = ("normalize.partition_bytes=400000",)


@pytest.fixture(scope="module", params=["", "merged"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Simulation]:
    """Run a recipe with three sources, and simulate it with the corpus measured in this run. With "merged", the runs of
    each exchange are merged.
    """
    recipe, root = write_shelf(tmp_path_factory.mktemp("shelf")), str(tmp_path_factory.mktemp("root"))
    with pytest.MonkeyPatch.context() as patched:
        if request.param:
            patched.setattr(merge, "MOST_READS", 4)
        ran = datakit.run(recipe, root, workers=2, settings=SETTINGS)
        corpus = measure([step.directory for step in ran.steps])
        loaded = load_recipe(recipe).with_overrides(SETTINGS)
        graph = build(loaded, str(tmp_path_factory.mktemp("empty")), ListingOptions(dry_run=True))
        return ran, simulate_graph(graph, corpus, Cluster(1, 2))


def real_counts(ran: RunResult) -> Counts:
    found: Counts = {}
    for step in ran.steps:
        lines = list(read_ledger(step.directory))
        tasks = {line.phase: len(line.keys) for line in lines if isinstance(line, PhaseLine)}
        files = Counter[str]()
        for line in lines:
            if isinstance(line, AttemptLine) and line.result is not None:
                files[line.phase] += len(line.result.outputs)
        found |= {(step.stage, step.source, phase): (count, files[phase]) for phase, count in tasks.items()}
    return found


def simulated_counts(found: Simulation) -> Counts:
    phases = [phase for step in found.steps for phase in step.phases]
    return {(phase.stage, phase.source, phase.phase): (phase.tasks, phase.files) for phase in phases}


def test_tasks_of_every_phase_are_those_of_the_real_run(pair: tuple[RunResult, Simulation]) -> None:
    real, simulated = real_counts(pair[0]), simulated_counts(pair[1])
    assert {place: tasks for place, (tasks, _) in simulated.items()} == {
        place: tasks for place, (tasks, _) in real.items()
    }


def test_writes_of_every_exchange_are_those_of_the_real_run(pair: tuple[RunResult, Simulation]) -> None:
    real, simulated = real_counts(pair[0]), simulated_counts(pair[1])
    places = [place for place in real if place[2] != "sort"]  # not every partition has duplicates
    assert {place: simulated[place][1] for place in places} == {place: real[place][1] for place in places}


def test_partitions_of_every_manifest_are_those_of_the_real_run(pair: tuple[RunResult, Simulation]) -> None:
    real = {(step.stage, step.source): len(step.manifest.partitions) for step in pair[0].steps}
    assert real == {(step.stage, step.source): step.partitions for step in pair[1].steps}


def test_every_task_function_of_every_stage_can_be_simulated() -> None:
    assert _task_functions() == set(SIMULATORS) == set(RATES)


def _task_functions() -> set[str]:
    """Return the functions in datakit that have the parameters of a task function."""
    found = set[str]()
    for path in (REPOSITORY / "datakit").rglob("*.py"):
        module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                names = [one.arg for one in node.args.args]
                if names in (["arguments", "shared", "context"], ["arguments", "shared", "task"]):
                    found.add(f"{module}:{node.name}")
    return {name for name in found if not name.startswith("datakit.pipeline.packing_stage:")}


def test_an_unknown_task_function_is_named(tmp_path: Path) -> None:
    step = Step("filter", "shelf", str(tmp_path), "0" * 32, {})
    phase = Phase("choose", (Task("0", "datakit.filter.tasks:choose", {}),))
    with pytest.raises(StepFailedError, match=r"'choose' of stage 'filter'.*datakit.filter.tasks:choose"):
        simulators(PhaseOf(step, phase, World(Corpus())))


@pytest.fixture
def two_sources(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    tables = [f'[[sources]]\nname = "{name}"\nurl = "s3://bucket/{name}"\n' for name in ("first", "second")]
    path.write_text('name = "two"\n' + "\n".join(tables) + '\n[dedup]\n\n[tokenize]\ntokenizer = "bytes"\n')
    return path


def test_equal_simulations_have_equal_figures(two_sources: Path) -> None:
    recipe, cluster = load_recipe(two_sources), Cluster(3, 8)
    first, second = (simulate(recipe, 10**10, cluster, rate=0.05) for _ in range(2))
    for one, other in zip(first.steps, second.steps, strict=True):  # the lengths of the times in a ledger vary
        assert replace(one, ledger=0) == replace(other, ledger=0)
    assert (first.seconds, first.money) == (second.seconds, second.money)
    assert first.money == pytest.approx(0.05 * 24 * first.seconds / 3600)


def test_work_does_not_depend_on_the_machines_but_time_does(two_sources: Path) -> None:
    recipe = load_recipe(two_sources)
    small, large = (simulate(recipe, 2 * 10**10, Cluster(nodes, 4)) for nodes in (1, 8))
    assert simulated_counts(small) == simulated_counts(large)
    assert large.seconds < small.seconds / 3
    assert small.seconds * 4 >= 3600 * small.cpu_hours
    assert 0.5 < small.utilisation <= 1.0


def test_memory_limits_the_attempts_of_a_node(two_sources: Path) -> None:
    recipe = load_recipe(two_sources)
    tight, wide = (simulate(recipe, 10**10, Cluster(1, 16, memory)) for memory in (256 << 20, 8 << 30))
    assert tight.seconds > 1.5 * wide.seconds


def test_components_take_rounds_when_one_task_cannot_hold_them(two_sources: Path) -> None:
    short = Corpus(document_bytes=500, clustered=0.9)
    found = simulate(load_recipe(two_sources), 10**10, Cluster(1, 32), short)
    (dedup,) = (step for step in found.steps if step.stage == "dedup")
    names = [phase.phase for phase in dedup.phases]
    assert "links" in names and "large-1" in names and names.count("labels") == 1


def test_a_giant_component_is_judged_in_blocks(two_sources: Path) -> None:
    short = Corpus(document_bytes=500, clustered=0.5, giant=0.3)
    found = simulate(load_recipe(two_sources), 10**10, Cluster(1, 32), short)
    (dedup,) = (step for step in found.steps if step.stage == "dedup")
    phases = {phase.phase: phase for phase in dedup.phases}
    documents = 10**10 // 500 * 0.5 * 0.3
    blocks = block_count(int(documents))
    assert 10 < blocks < 16
    assert [name for name in phases if name.startswith("settle-")] == [f"settle-{number}" for number in range(blocks)]
    assert [phases[f"probe-{number}"].tasks for number in range(blocks - 1)] == list(range(blocks - 1, 0, -1))
    without = simulate(load_recipe(two_sources), 10**10, Cluster(1, 32), replace(short, giant=0.0))
    (other,) = (step for step in without.steps if step.stage == "dedup")
    assert not any(phase.phase.startswith("settle") for phase in other.phases)


def test_parts_add_up() -> None:
    assert sum(share(1001, index, 7) for index in range(7)) == 1001
    texts = generated(Corpus(), ["a", "b", "c"], 10**9)
    assert sum(text.text_bytes for text in texts.values()) == pytest.approx(10**9, rel=0.02)


def test_machines_must_exist(two_sources: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Cluster(0, 4)
    with pytest.raises(UsageError, match="at least one byte"):
        simulate(load_recipe(two_sources), 0, Cluster())


def test_no_file_is_written(two_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders of an exchange are dropped, as in a real run, but neither a ledger nor its lock says so."""
    (root := tmp_path / "root").mkdir()
    monkeypatch.setattr(drops, "DROP_BYTES", 1)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(root)))
    monkeypatch.setattr(locks, "_held", set())  # those of other tests may end meanwhile
    simulate(load_recipe(two_sources), 10**6, Cluster(1, 2), until="dedup")
    assert locks.count() == 0 and not list(root.rglob("*"))


@pytest.mark.soak
def test_twenty_trillion_tokens_on_a_hundred_machines(two_sources: Path) -> None:
    found = simulate(load_recipe(two_sources), 80 * 10**12, Cluster(100, 64), rate=0.05)
    assert found.text_bytes == pytest.approx(80 * 10**12, rel=0.01)
    assert sum(phase.tasks for step in found.steps for phase in step.phases) > 500_000
    assert found.driver_memory < 4 << 30
