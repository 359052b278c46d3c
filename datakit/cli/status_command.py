"""Implements `datakit status`, which prints the states of steps and of tasks (by default at most 40 tasks per step)."""

from __future__ import annotations

from time import gmtime, strftime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from datakit.cli.console import Cell, bytes_text, note, say, say_json, seconds_text, table, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import UsageError, counted
from datakit.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datakit.engine.ledger.status import StepStatus, TaskStatus

HEADERS = ("phase", "task", "state", "attempts", "time", "peak / budget")
DONE_HEADERS = ("stage", "of", "tasks", "quarantined", "time", "last active")
TASKS_SHOWN = 40


def status(
    directory: str,
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    watch: Flag = False,
    json: Flag = False,
) -> int:
    """Show the tasks of a step, a dataset (with its sources) or a root.

    For each task, shows its state, attempts, last failure, time and memory. If there are several steps, those that are
    done are listed after the others, without their tasks (unless --all is given). The command only reads files, so it
    also works during a run and after the run's driver has died.

    Examples:
      datakit status data/demo
      datakit status data/demo --watch
      datakit status data/sources/stdlib-code/normalize-0123456789ab --all

    Parameters
    ----------
    directory
        The directory of a step, or a directory that contains steps.
    all_
        Show every task. By default, at most 40 tasks per step are shown (failed tasks first), and if there are
        several steps, the tasks of those that are done are not shown.
    watch
        Show the steps of the active runs until the runs end: in a table on a terminal, else line by line. If no run
        is active, show the tasks as usual.
    json
        Print one JSON object with every task.
    """
    from datakit.api import status as read_status
    from datakit.engine.ledger.ledger import skipped_note

    if watch:
        if json or all_:
            raise UsageError("--watch cannot be combined with --json or --all")
        if _watched(directory):
            return ExitCode.DONE
    found = read_status(directory)
    if json:
        say_json({"steps": found})
        return 0
    detailed = [step for step in found if all_ or len(found) == 1 or step.state != "done"]
    for number, step in enumerate(detailed):
        if number:
            say()
        _show(step, everything=all_)
    if len(detailed) < len(found):
        say("\n" * bool(detailed) + _done_table([step for step in found if step not in detailed]))
        note("`datakit status` of one of these steps, or --all, shows its tasks")
    for step in found:
        if step.unknown_lines:
            note(skipped_note(step.unknown_lines, step.directory))
    if any(step.state == "newer" for step in found):
        note("the steps marked newer were finished by a newer version of datakit, which alone can read them")
    if any(step.state == "partial" for step in found):
        note("some steps are partial; act on the messages above, then repeat the same `datakit run`")
    elif any(step.state not in ("done", "newer") for step in found):
        note("some steps are not done; repeat the same `datakit run` to continue them")
    return 0


def _watched(directory: str) -> bool:
    """Show the active runs until they end, or until Ctrl-C. Return False if there are none."""
    from datakit.cli.live.watch import watch

    try:
        watched = watch(directory)
    except KeyboardInterrupt:  # the usual way to leave; nothing is interrupted but the display
        return True
    if not watched:
        note(f"no run is active in {directory}")
    return watched


def _done_table(steps: Sequence[StepStatus]) -> str:
    """Return a table of the steps that are done: one row per step, with the step's directory below it."""
    rows: list[list[Cell]] = [
        [
            step.directory.rstrip("/").rpartition("/")[2].rpartition("-")[0],
            step.directory.rstrip("/").split("/")[-2],
            len(step.tasks),
            sum(task.quarantined for task in step.tasks),
            seconds_text(step.elapsed),
            _moment(step.ended),
        ]
        for step in steps
    ]
    return "done:\n" + table(DONE_HEADERS, rows, [step.directory for step in steps])


def _moment(time: float | None) -> str:
    try:
        return "" if time is None else strftime("%Y-%m-%d %H:%M UTC", gmtime(time))
    except (OverflowError, OSError, ValueError):  # no clock shows such a time: the ledger was altered
        return "at an unknown time"


def _memory(of: StepStatus | TaskStatus) -> str:
    return f"{bytes_text(of.peak_memory)} / {bytes_text(of.budget)}" if of.budget else ""


def _failure(task: TaskStatus) -> str:
    """Return a summary of a task's last failure: the first line of the message and the number of further lines. (If
    inputs were refused, the message has a line for each of them.)
    """
    first, *more = task.last_failure.splitlines() or [""]
    return first and f"last failure: {first}" + (f" (and {len(more):,} more; --json shows all)" if more else "")


def _show(step: StepStatus, everything: bool) -> None:
    done = sum(task.state == "done" for task in step.tasks)
    facts = [f"{done:,} of {counted(len(step.tasks), 'task')}"] if step.tasks else []
    if step.ended is not None:
        facts.append(f"{seconds_text(step.elapsed)}, last active {_moment(step.ended)}")
    facts += [f"CPU {seconds_text(step.cpu_seconds)}, peak {_memory(step)}"] if step.tasks else []
    say(f"{step.directory}\n{wrapped(', '.join([step.state, *facts]), '  ', '  ')}")
    if step.failure:
        say("\n".join(wrapped(line, "  ", "  ") for line in step.failure.splitlines()))
    tasks = step.tasks
    if not everything and len(tasks) > TASKS_SHOWN:
        tasks = sorted(tasks, key=lambda task: (not task.last_failure, task.state == "done"))[:TASKS_SHOWN]
    if tasks:
        rows = [
            [task.phase, task.key, task.state, task.attempts, seconds_text(task.seconds), _memory(task)]
            for task in tasks
        ]
        say(table(HEADERS, rows, [_failure(task) for task in tasks]))
    if len(tasks) < len(step.tasks):
        say(f"... and {len(step.tasks) - len(tasks):,} more of its tasks (--all shows them)")
