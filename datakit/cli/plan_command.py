"""`datakit plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from datakit.cli.console import Cell, bytes_text, note, say, say_json, table

if TYPE_CHECKING:
    from datakit.pipeline import PlannedStep, RunPlan

Flag = Parameter(negative="", show_default=False)
HEADERS = ("stage", "of", "state", "text", "tasks", "at a time", "memory a task", "disk", "why")


def plan(
    recipe: str,
    /,
    *,
    root: str = "./data",
    workers: int | None = None,
    until: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
    offline: Annotated[bool, Flag] = False,
    json: Annotated[bool, Flag] = False,
) -> int:
    """Show what a run would do; writes nothing.

    Steps, inputs, sizes, workers, memory and disk, and which steps are done.

    Examples:
      datakit plan demo
      datakit plan books.toml --root /big/disk --set dedup.threshold=0.9

    Parameters
    ----------
    recipe
        A recipe file (TOML), or a name of `datakit catalog`.
    root
        Where a run would write.
    workers
        How many tasks would run at a time; one for each usable CPU by default.
    until
        Plan up to this stage only.
    set_
        Set a value of the recipe, e.g. dedup.threshold=0.9. Can be repeated.
    offline
        List no remote source: trust what was downloaded last.
    json
        Print one JSON object.
    """
    from datakit.pipeline import plan as plan_recipe
    from datakit.recipe import load_recipe

    found = plan_recipe(load_recipe(recipe).with_overrides(set_), root, workers=workers, until=until, offline=offline)
    for line in found.notes:
        note(line)
    if json:
        say_json({"disk_needed": found.disk_needed, **_plain(found)})
        return 0
    _show(found)
    return 0


def _plain(found: RunPlan) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(found)


def _show(found: RunPlan) -> None:
    done = sum(step.state == "done" for step in found.steps)
    say(f"{found.dataset} in {found.root}: {len(found.steps)} steps, {done} done")
    say()
    say(table(HEADERS, [_row(step) for step in found.steps]))
    say()
    say("directories and inputs:")
    for step in found.steps:
        say(f"  {step.directory}{'' if step.settled or step.state == 'done' else '  (if its inputs lose no record)'}")
        for source in step.reads:
            say(f"    reads {source}")
    say()
    means = found.resources
    say(f"workers: {means.workers} ({means.workers_reason})")
    say(f"memory:  {bytes_text(means.memory_bytes)} ({means.memory_reason})")
    needed = "unknown" if found.disk_needed is None else f"about {bytes_text(found.disk_needed)}"
    free = "" if means.disk_free is None else f", {bytes_text(means.disk_free)} free"
    say(f"disk:    {needed} needed beside what is there{free}")
    if found.disk_needed is not None and means.disk_free is not None and found.disk_needed > means.disk_free:
        note(f"warning: the disk of {found.root} will not hold it; choose another --root")


def _row(step: PlannedStep) -> list[Cell]:
    return [
        step.stage,
        step.source or "all",
        step.state,
        bytes_text(step.text_bytes) if step.text_bytes is not None else None,
        step.tasks,
        step.at_a_time,
        bytes_text(step.task_memory) if step.task_memory is not None else None,
        bytes_text(step.disk_peak) if step.disk_peak is not None else None,
        step.reason,
    ]
