"""Simulates a run of a recipe: generates a listing for each source and a result for each task.

These parts are real: the plans of all stages, the priorities, the run loop, the memory budgets, the queues and results
of phases, the ledger lines and the manifests. The driver's memory is therefore measured, not estimated. These parts are
simulated: the tasks (`task_table.py`), their times (`rates.py`), the machines (`clock.py`) and all files. Every attempt
succeeds.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from datakit.cache.layout import TOKENIZER_FILE
from datakit.conditions.config import DOCUMENT, Rule
from datakit.conditions.expressions import Conditions
from datakit.dedup.survivors import score_columns
from datakit.download.listing import source_base
from datakit.download.source_file import SourceFile
from datakit.engine.executor import Attempt
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.background import Inline
from datakit.engine.scheduler.phase_run import PhaseStart
from datakit.engine.scheduler.run_loop import Ended, RunLoop
from datakit.engine.task import Phase, Step, Task
from datakit.errors import UsageError
from datakit.pipeline.estimates.priorities import priorities
from datakit.pipeline.graph import Graph, LocatedStep, Node, build_listed, engine_step
from datakit.pipeline.resolve_sources import SourceState
from datakit.pipeline.simulate.clock import Cluster, Notice, Spent, VirtualExecutor
from datakit.pipeline.simulate.corpus import Corpus, generated, share
from datakit.pipeline.simulate.effects import CHECKSUM, Effect, PhaseOf, Run, World, put_requests
from datakit.pipeline.simulate.figures import HOUR, PhaseFigures, Simulation, StepFigures, label, shortcomings
from datakit.pipeline.simulate.rates import DRIVER_MEMORY
from datakit.pipeline.simulate.results.text_results import SCORES
from datakit.pipeline.simulate.simulated_step import SimulatedStep
from datakit.pipeline.simulate.task_table import simulators
from datakit.recipe import Recipe
from datakit.select.bucket_config import Bucket
from datakit.storage import globs
from datakit.storage.manifest import Manifest
from datakit.tokenize import train_stage

SAMPLE_EVERY = 1000  # tasks between two measurements of the process's memory


def simulate(
    recipe: Recipe,
    text_bytes: int,
    cluster: Cluster,
    corpus: Corpus | None = None,
    *,
    until: str | None = None,
    rate: float | None = None,
) -> Simulation:
    """Simulate a run of a recipe on `text_bytes` bytes of text. Lists no source and writes nothing to a root. rate: the
    price of a core-hour. Raises InputError.
    """
    if text_bytes < 1:
        raise UsageError("the simulated size must be at least one byte")
    corpus = corpus or Corpus()
    # the simulated files have names that say nothing about splits
    recipe = replace(recipe, sources=tuple(replace(source, splits=None) for source in recipe.sources))
    texts = generated(corpus, [source.name for source in recipe.sources], text_bytes)
    corpus = replace(corpus, sources={**texts, **corpus.sources})
    with tempfile.TemporaryDirectory(prefix="datakit-simulation-") as root:
        states = [_state(source.name, source.url, corpus) for source in recipe.sources]
        return simulate_graph(build_listed(recipe, root, states, until), corpus, cluster, rate=rate)


def simulate_graph(
    graph: Graph,
    corpus: Corpus,
    cluster: Cluster,
    *,
    rate: float | None = None,
    notice: Notice = lambda attempt, spent: None,
) -> Simulation:
    """Simulate the steps of a graph whose sources have been listed. Its root must be an empty temporary folder, to
    which only a trained tokenizer is written. notice: called with each task's attempt and what the task takes.
    """
    run = _SimulatedRun(graph, World(corpus), cluster, notice)
    run.run()
    return run.figures(rate)


def _state(name: str, url: str, corpus: Corpus) -> SourceState:
    """Return the state of a source whose text is in files of about `corpus.file_bytes` bytes."""
    raw = int(corpus.sources[name].value_bytes / corpus.expansion)
    count = max(1, round(raw / corpus.file_bytes))
    local, now = "://" not in globs.expand(url), 0
    files = tuple(
        SourceFile(
            f"part-{number:06d}{corpus.file_suffix}", share(raw, number, count), CHECKSUM, now if local else None
        )
        for number in range(count)
    )
    content = {"include": [], "exclude": [], "listing": CHECKSUM}
    return SourceState(name, content, source_base(url) if local else url, files)  # no store is asked


@dataclass
class _Phase:
    """A running phase: the functions that simulate its tasks, and its results."""

    runs: dict[str, Run]
    figures: PhaseFigures


@dataclass
class _Open:
    """A running step."""

    located: LocatedStep
    run: SimulatedStep
    started: float
    phases: list[PhaseFigures] = field(default_factory=list)


class _SimulatedRun:
    """One simulated run: does what `pipeline/schedule/graph_run.py` does, but without leases, reports and files."""

    def __init__(self, graph: Graph, world: World, cluster: Cluster, notice: Notice) -> None:
        self._graph, self._world, self._cluster, self._also_notice = graph, world, cluster, notice
        self._priorities = priorities(graph)
        self._executor = VirtualExecutor(cluster, self._simulate, self._notice)
        self._left, self._ready = list(graph.nodes), dict[str, LocatedStep]()
        self._done: dict[str, LocatedStep] = {}
        self._open: dict[str, _Open] = {}
        self._phases: dict[tuple[str, str], _Phase] = {}
        self._steps: dict[str, StepFigures] = {}
        self._memory = _Growth()
        self._tasks = 0

    def run(self) -> None:
        """Run all steps."""
        quiet = Observer()
        loop = RunLoop(lambda: self._executor, lambda: quiet, Inline[PhaseStart | Manifest]())
        self._look_for_ready()
        while self._start_ready(loop, quiet) or len(loop):
            ended = loop.turn()
            for one in ended:
                self._settle(one)
            if ended:
                self._look_for_ready()

    def figures(self, rate: float | None) -> Simulation:
        """Return the results of the run."""
        steps = tuple(self._steps[node.label] for node in self._graph.nodes)
        seconds, slots = self._executor.now, self._cluster.slots
        cpu = sum(phase.cpu_seconds for step in steps for phase in step.phases) / HOUR
        hours = slots * seconds / HOUR
        self._memory.sample()
        driver = DRIVER_MEMORY + self._memory.bytes
        return Simulation(
            self._graph.dataset,
            sum(source.text_bytes for source in self._world.corpus.sources.values()),
            self._cluster, steps, seconds, cpu, hours, None if rate is None else rate * hours,
            self._executor.busy / max(1e-9, slots * seconds), driver, self._memory.cpu_seconds(),
            tuple(self._critical()), tuple(shortcomings(steps, self._cluster, seconds, driver)),
        )  # fmt: skip

    # --- steps

    def _look_for_ready(self) -> None:
        ready = [node for node in self._left if all(above.label in self._done for above in node.upstream)]
        self._left = [node for node in self._left if node not in ready]
        for node in ready:
            self._ready[node.label] = self._graph.locate(node, self._done)
        self._ready = dict(sorted(self._ready.items(), key=lambda item: self._priorities[item[0]]))

    def _start_ready(self, loop: RunLoop, observer: Observer) -> bool:
        for name in list(self._ready):
            if not loop.has_room(self._priorities[name]):
                break
            located = self._ready.pop(name)
            step = replace(engine_step(located, self._done), limits=self._graph.limits)
            step = replace(step, operations={**step.operations, SCORES: self._scores()})
            run = SimulatedStep(step, located.node.module.plan(step), observer, self._enter, self._end)
            self._open[step.directory] = _Open(located, run, self._executor.now)
            loop.add(run, self._priorities[name])
        return bool(self._ready or self._open)

    def _scores(self) -> list[str]:
        """Return the columns of the documents that the recipe's dedup step and its rules read."""
        found = list[str]()
        for node in self._graph.nodes:
            content = node.settings.content
            found += score_columns(content.get("prefer", ())) if node.stage == "dedup" else []
            if node.stage in ("rules", "select"):
                rules = msgspec.convert([*content.get("rules", ())], list[Rule])
                rules += [one.as_rule() for one in msgspec.convert([*content.get("buckets", ())], list[Bucket])]
                # without rules, a driver does not load the database, so neither may this process: its memory counts
                found += Conditions(rules, sorted(content.get("edits", {}))).wanted.get(DOCUMENT, []) if rules else []
        return list(dict.fromkeys(found))

    def _settle(self, ended: Ended) -> None:
        if ended.error is not None:
            raise ended.error
        opened = self._open.pop(ended.step.directory)
        node, about = opened.located.node, opened.run.metadata
        self._done[node.label] = replace(opened.located, manifest=ended.manifest)
        if node.stage == train_stage.NAME:  # the plan of the contract step reads the tokenizer
            folder = Path(ended.step.directory)
            folder.mkdir(parents=True)
            (folder / TOKENIZER_FILE).write_bytes(b"{}")
        self._steps[node.label] = StepFigures(
            node.stage, node.source, tuple(opened.phases), opened.started, self._executor.now, about.ledger,
            about.manifest, about.listed, about.files, 0 if ended.manifest is None else len(ended.manifest.partitions),
        )  # fmt: skip
        self._memory.sample()

    def _critical(self) -> list[str]:
        """Return the labels on the critical path: starting from the last step, always the input that ended last."""
        nodes = {node.label: node for node in self._graph.nodes}
        node: Node | None = max(nodes.values(), key=lambda one: self._steps[one.label].ended)
        found = list[str]()
        while node is not None:
            found.append(label(node.stage, node.source))
            node = max(node.upstream, key=lambda one: self._steps[one.label].ended, default=None)
        return found[::-1]

    # --- phases and tasks

    def _enter(self, step: Step, phase: Phase, shared: int) -> None:
        opened = self._open[step.directory]
        node = opened.located.node
        figures = PhaseFigures(
            node.stage, node.source, phase.name, len(phase.tasks), shared, started=self._executor.now,
            largest=max(task.input_bytes for task in phase.tasks), memory=_declared(phase),
        )  # fmt: skip
        if shared:  # each worker reads the file with the shared data once
            figures.reads = min(len(phase.tasks), self._cluster.slots)
        opened.phases.append(figures)
        runs = simulators(PhaseOf(step, phase, self._world))
        self._phases[step.directory, phase.name] = _Phase(runs, figures)
        self._memory.sample()

    def _end(self, step: Step, phase: Phase) -> None:
        self._phases.pop((step.directory, phase.name)).figures.ended = self._executor.now
        self._memory.sample()

    def _simulate(self, attempt: Attempt, task: Task) -> tuple[Effect, int]:
        phase = self._phases[attempt.step_directory, attempt.phase]
        return phase.runs[task.function](task), phase.figures.shared

    def _notice(self, attempt: Attempt, spent: Spent) -> None:
        figures, effect = self._phases[attempt.step_directory, attempt.phase].figures, spent.effect
        figures.reads, figures.files = figures.reads + effect.reads, figures.files + effect.writes
        figures.writes += effect.writes + sum(put_requests(one.bytes) - 1 for one in effect.result.outputs)
        figures.read_bytes += effect.read
        figures.exchanged += effect.exchanged
        figures.cpu_seconds += spent.cpu_seconds
        figures.longest = max(figures.longest, spent.seconds)
        self._also_notice(attempt, spent)
        self._tasks += 1
        if self._tasks % SAMPLE_EVERY == 0:
            self._memory.sample()


def _declared(phase: Phase) -> int:
    held = (task.input_bytes if task.held_bytes is None else task.held_bytes for task in phase.tasks)
    return int(phase.memory_bytes + phase.memory_per_input_byte * max(held))


class _Growth:
    """Measures the growth of this process's resident memory. bytes: the maximum so far."""

    def __init__(self) -> None:
        self._start, self.bytes = _resident(), 0
        self._cpu = time.process_time()

    def sample(self) -> None:
        """Measure the memory now."""
        self.bytes = max(self.bytes, _resident() - self._start)

    def cpu_seconds(self) -> float:
        """Return the CPU-seconds that this process has taken since the start."""
        return time.process_time() - self._cpu


def _resident() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
