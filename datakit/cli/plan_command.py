"""Implements `datakit plan`, which prints the planned steps and resources, and warns if the root's disk has too little
free space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from datakit.cli.console import Cell, bytes_cell, bytes_text, note, say, say_json, seconds_text, table, wrapped
from datakit.cli.parameters import Flag, Settings
from datakit.cli.simulation.machines import Machines
from datakit.errors import UsageError, counted

if TYPE_CHECKING:
    from datakit.pipeline.earlier_steps import EarlierStep
    from datakit.pipeline.estimates.forecast import Forecast
    from datakit.pipeline.planning import PlannedStep, RunPlan

MEMORY = "4GB"  # of each core of a simulated machine
HEADERS = ("stage", "of", "state", "text", "tasks", "at a time", "memory each", "disk")


def plan(
    recipe: str,
    /,
    *,
    root: str = "./data",
    workers: int | None = None,
    until: str | None = None,
    set_: Settings = (),
    offline: Flag = False,
    simulate: str | None = None,
    nodes: int = 1,
    cores: int | None = None,
    memory_per_core: str = MEMORY,
    rate: float | None = None,
    corpus: str | None = None,
    json: Flag = False,
) -> int:
    """Show what a run would do. Writes nothing.

    The plan lists the steps, each with its state, inputs and sizes. It also gives the number of workers, the memory and
    the disk space that the run would use.

    Examples:
      datakit plan demo
      datakit plan books.toml --root /big/disk --set dedup.threshold=0.9
      datakit plan books.toml --simulate 80TB --nodes 100 --cores 64 --rate 0.05

    Parameters
    ----------
    recipe
        A recipe file (TOML) or a name from `datakit catalog list`.
    root
        The directory or URL to which a run would write.
    workers
        Number of tasks that would run at a time; by default one per usable CPU.
    until
        Plan only up to this stage.
    set_
        Override a value of the recipe, for example dedup.threshold=0.9. Can be repeated.
    offline
        Do not list remote sources; use the last download of each.
    simulate
        Simulate the run on this amount of text, for example 80TB. The sources are not listed.
    nodes
        With --simulate: the number of machines.
    cores
        With --simulate: the number of cores of each machine; by default, that of this machine.
    memory_per_core
        With --simulate: the memory of each machine, per core.
    rate
        With --simulate: the price of a core for an hour.
    corpus
        With --simulate: a TOML file that describes the text (docs/operations.md).
    json
        Print one JSON object instead of the table.
    """
    if simulate is not None:
        from datakit.cli.simulation.simulation_table import show_simulation

        _refuse_beside_simulation(workers, offline)
        machines = Machines(nodes, cores, memory_per_core)
        return show_simulation(
            recipe, simulate, machines, until=until, settings=set_, rate=rate, corpus=corpus, json=json
        )
    simulated = {"nodes": None if nodes == 1 else nodes, "cores": cores, "rate": rate, "corpus": corpus}
    _refuse_without_simulation(simulated | {"memory-per-core": None if memory_per_core == MEMORY else memory_per_core})
    from datakit.api import plan as plan_recipe

    found = plan_recipe(recipe, root, workers=workers, until=until, settings=set_, offline=offline)
    for line in found.notes:
        note(line)
    if json:
        say_json({"disk_needed": found.disk_needed, **asdict(found)})
        return 0
    _show(found)
    note(f"next: datakit run {recipe} --root {root}, with the same options")
    return 0


def _refuse_beside_simulation(workers: int | None, offline: bool) -> None:
    if workers is not None:
        raise UsageError("--workers does not describe simulated machines; use --nodes and --cores")
    if offline:
        raise UsageError("--offline has no effect on a simulation, which lists no source; remove it")


def _refuse_without_simulation(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name} describes simulated machines or text; add --simulate, for example 80TB")


def _show(found: RunPlan) -> None:
    done = sum(step.state == "done" for step in found.steps)
    say(wrapped(f"{found.dataset} in {found.root}: {counted(len(found.steps), 'step')}, {done} done", more="  ") + "\n")
    say(table(HEADERS, [_row(step) for step in found.steps], [step.reason for step in found.steps]))
    say("\ndirectories and inputs:")
    for step in found.steps:
        say(f"  {step.directory}")
        if not step.settled and step.state != "done":
            say("    (if its inputs lose no records)")
        for source in step.reads:
            say(wrapped(f"reads {source}", "    ", "  "))
    say()
    _show_earlier(found)
    _show_requests(found)
    available = found.resources
    say(f"workers: {available.workers} ({available.workers_reason})")
    say(f"memory:  {bytes_text(available.memory_bytes)} ({available.memory_reason})")
    needed = "unknown" if found.disk_needed is None else f"about {bytes_text(found.disk_needed)}"
    free = "" if available.disk_free is None else f", {bytes_text(available.disk_free)} free"
    say(f"disk:    {needed} more needed{free}")
    if found.forecast is not None:
        _show_forecast(found.forecast, available.workers)
    if found.disk_needed is not None and available.disk_free is not None and found.disk_needed > available.disk_free:
        note(f"warning: {found.root} does not have enough disk space; `datakit run` would refuse to start")


def _show_forecast(forecast: Forecast, workers: int) -> None:
    """Print the estimates of time. They do not include the start of processes, which takes seconds."""
    seconds, work = seconds_text(forecast.seconds), seconds_text(forecast.cpu_seconds)
    say(f"time:    about {seconds} for {work} of CPU time (estimated from the amount of text)")
    busy = f"{forecast.utilisation:.0%} of {counted(workers, 'worker')}"
    say(wrapped(f"busy:    {busy} on average (estimated)", more="  "))
    path, shortest = ", ".join(forecast.path), seconds_text(forecast.path_seconds)
    say(wrapped(f"critical path: {path}; about {shortest} if no task waits for a worker (estimated)", more="  "))


def _show_requests(found: RunPlan) -> None:
    """Print what would leave this machine for model servers."""
    for one in found.requests:
        place = f"model server {one.name} ({one.host})"
        if one.open is None or one.text_bytes is None:
            text = f"{place}: would be sent documents of {one.source}; how many is unknown until normalize is done"
        else:
            known = f"{one.open:,} of {counted(one.documents or 0, 'document')} of {one.source}"
            cost = "" if one.cost is None else f", for about {one.cost:,.2f}"
            text = (
                f"{place}: would be sent {known}, at most {bytes_text(one.text_bytes)} of text, in "
                f"{counted(one.open, 'request')} if none is repeated{cost}"
            )
        limit = f", and max_requests is {one.max_requests:,}" if one.max_requests else ""
        say(wrapped(f"{text}; requests sent so far: {one.sent:,}{limit}", more="  "))
    if found.requests:
        say()


EARLIER = ("stage", "of", "documents", "text", "disk", "format", "now")


def _show_earlier(found: RunPlan) -> None:
    """Print the steps that earlier versions of datakit finished or began, and that the run would make again."""
    pairs = [(step, earlier) for step in found.steps for earlier in step.earlier]
    finished = [(step, earlier) for step, earlier in pairs if earlier.finished]
    if finished:
        say("steps made by an earlier version, which stay; the run makes them again from the amount of text shown:")
        reasons = [f"made again, because {earlier.why}" for _, earlier in finished]
        say(table(EARLIER, [_earlier_row(step, earlier) for step, earlier in finished], reasons))
        say(f"disk: {bytes_text(sum(earlier.bytes or 0 for _, earlier in finished))}, in these directories:")
        for _, earlier in finished:
            say(f"  {earlier.directory}")
        say()
    for _, earlier in (pair for pair in pairs if not pair[1].finished):
        say(f"{earlier.directory} was begun by an earlier version")
        say(f"  It cannot be continued, because {earlier.why}; `datakit gc` lists it for removal.")
        say()


def _earlier_row(step: PlannedStep, earlier: EarlierStep) -> list[Cell]:
    text = bytes_text(step.text_bytes) if step.text_bytes is not None else None
    disk = bytes_text(earlier.bytes) if earlier.bytes is not None else None
    version = "unknown" if earlier.version is None else str(earlier.version)
    return [step.stage, step.source or "all", earlier.documents, text, disk, version, str(earlier.now)]


def _row(step: PlannedStep) -> list[Cell]:
    text, memory, disk = (bytes_cell(size) for size in (step.text_bytes, step.task_memory, step.disk_peak))
    return [step.stage, step.source or "all", step.state, text, step.tasks, step.at_a_time, memory, disk]
