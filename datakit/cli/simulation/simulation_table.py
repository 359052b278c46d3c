"""Simulates a run, and prints a line for each phase, the totals, the critical path, and what does not scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import TYPE_CHECKING

from datakit.cli.console import Cell, bytes_cell, bytes_text, note, say, say_json, seconds_text, table, wrapped
from datakit.cli.simulation.machines import Machines, byte_count

if TYPE_CHECKING:
    from datakit.pipeline.simulate.figures import PhaseFigures, Simulation, StepFigures

HEADERS = ("stage", "phase", "tasks", "reads", "writes", "exchange", "CPU hours", "hours", "longest")
METADATA = ("stage", "files", "ledgers", "manifests", "shared data")


def show_simulation(
    recipe: str,
    size: str,
    machines: Machines,
    *,
    until: str | None,
    settings: Sequence[str],
    rate: float | None,
    corpus: str | None,
    json: bool,
) -> int:
    """Simulate a run and print the results."""
    from datakit.api import simulate
    from datakit.pipeline.simulate.clock import Cluster

    memory = byte_count(machines.memory_per_core, "memory-per-core")
    cluster = Cluster(machines.nodes, machines.cores_of_each(), memory)
    text_bytes = byte_count(size, "simulate")
    found = simulate(recipe, text_bytes, cluster, until=until, settings=settings, rate=rate, corpus=corpus)
    if json:
        say_json(asdict(found))
        return 0
    _show(found)
    note("the rates and shares were measured, but the machines were not; docs/operations.md explains each result")
    return 0


def _show(found: Simulation) -> None:
    cluster = found.cluster
    say(f"{found.dataset}: {bytes_text(found.text_bytes)} of text on {cluster.nodes:,} x {cluster.cores:,} cores "
        f"with {bytes_text(cluster.memory)} per core\n")  # fmt: skip
    say(table(HEADERS, [_row(phase) for phase in by_stage(found.steps)]))
    say()
    say(table(METADATA, list(_metadata(found.steps))))
    say()
    say(f"time:     {seconds_text(found.seconds)}; {found.utilisation:.0%} of the slots are occupied on average")
    money = "" if found.money is None else f", which cost {found.money:,.2f}"
    say(f"cores:    {found.cpu_hours:,.1f} CPU hours of tasks; {found.core_hours:,.1f} core hours{money}")
    say(f"driver:   {bytes_text(found.driver_memory)} of memory, {seconds_text(found.driver_seconds)} of CPU time")
    say(wrapped(f"critical path: {', '.join(found.critical)}", more="  "))
    for text in found.notes:
        say(wrapped(f"does not scale: {text}", more="  "))


def by_stage(steps: Sequence[StepFigures]) -> Iterator[PhaseFigures]:
    """Yield the results for each phase of each stage, summed over all sources. The hours are those from the first start
    to the last end.
    """
    phases = [phase for step in steps for phase in step.phases]
    stages = {stage: number for number, stage in enumerate(dict.fromkeys(phase.stage for phase in phases))}
    for _, steps_of in groupby(sorted(phases, key=lambda one: stages[one.stage]), key=lambda one: one.stage):
        named: dict[str, PhaseFigures] = {}
        for phase in steps_of:
            named[phase.phase] = _added(named[phase.phase], phase) if phase.phase in named else replace(phase)
        yield from named.values()


def _added(first: PhaseFigures, other: PhaseFigures) -> PhaseFigures:
    names = ("tasks", "reads", "writes", "read_bytes", "exchanged", "cpu_seconds")
    sums = {name: getattr(first, name) + getattr(other, name) for name in names}
    return replace(
        first, **sums, started=min(first.started, other.started), ended=max(first.ended, other.ended),
        longest=max(first.longest, other.longest), largest=max(first.largest, other.largest),
        memory=max(first.memory, other.memory), shared=max(first.shared, other.shared),
    )  # fmt: skip


def _row(phase: PhaseFigures) -> list[Cell]:
    return [
        phase.stage, phase.phase, phase.tasks, phase.reads, phase.writes, bytes_cell(phase.exchanged or None),
        f"{phase.cpu_seconds / 3600:,.1f}", f"{phase.seconds / 3600:,.2f}", seconds_text(phase.longest),
    ]  # fmt: skip


def _metadata(steps: Sequence[StepFigures]) -> Iterator[list[Cell]]:
    for stage in dict.fromkeys(step.stage for step in steps):
        mine = [step for step in steps if step.stage == stage]
        shared = sum(phase.shared for step in mine for phase in step.phases)
        yield [stage, sum(step.files for step in mine), bytes_cell(sum(step.ledger for step in mine)),
               bytes_cell(sum(step.manifest for step in mine)), bytes_cell(shared)]  # fmt: skip
