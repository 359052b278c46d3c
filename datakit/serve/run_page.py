"""Composes the page of a run from the run's state and the filters in the page's address.

A page shows at most MOST_ROWS steps (running and failed ones first) and MOST_FAILURES failed attempts; the filters find
the others. So a page stays small, and can be sent again every second, whatever the size of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from datakit.errors import counted
from datakit.pipeline.root_layout import stage_order
from datakit.report.figures import Fact
from datakit.report.text_forms import text_of
from datakit.serve.followers import Follower
from datakit.serve.reproduce import command_of
from datakit.serve.run_lines import end_state
from datakit.serve.run_state import Failure, Memory, RunState, StepState

MOST_ROWS = 200
MOST_FAILURES = 50
MOST_CHOICES = 200
MOST_RUNNING = 12
FILTERS = ("stage", "source", "state")
FIRST = ("running", "failed", "partial", "interrupted")  # states of steps that are listed first
STOPPED = "interrupted"
LIVE = ("running", "silent")  # states of runs that are not over


@dataclass(frozen=True)
class Filter:
    """A choice among the values of a column. chosen: "" for all."""

    name: str
    chosen: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class StageLine:
    """The progress of a stage: its steps, the tasks of their current phases, and its failed attempts."""

    stage: str
    steps: int
    done: int
    running: int
    problems: int
    retries: int


@dataclass(frozen=True)
class RunPage:
    """The content of the page of a run. state: one of "running", "done", "partial", "failed", "silent", "dead".
    bars: the average number of running attempts over time, as shares of the highest such number, `busiest`. hidden:
    the number of steps that are left out. now: the running steps, most recently active first. finished: True if the
    run is over, so that a report covers all of it.
    """

    title: str
    dataset: str
    run: str
    state: str
    sentence: str
    facts: tuple[Fact, ...]
    command: str
    filters: tuple[Filter, ...]
    stages: tuple[StageLine, ...]
    now: tuple[StepState, ...]
    steps: tuple[StepState, ...]
    hidden: int
    failures: tuple[Failure, ...]
    more_failures: int
    memory: tuple[tuple[str, Memory], ...]
    bars: tuple[float, ...]
    busiest: float
    bar_seconds: float
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    finished: bool
    details: tuple[tuple[str, str], ...] = field(default=())


def run_page(follower: Follower, query: Mapping[str, str]) -> RunPage:
    """Return the content of the page. query: the parameters of its address."""
    state, entry = follower.state, follower.entry
    chosen = {name: query.get(name, "") for name in FILTERS}
    shown = [step for step in state.steps.values() if _matches(step, chosen)]
    ordered = sorted(shown, key=lambda step: (step.state not in FIRST, -step.last))
    failures = [one for one in reversed(state.failures) if _fits(one.stage, one.source, chosen)]
    busy = state.activity.busy() if state.activity else []
    health = _health(follower)
    running = [step for step in state.steps.values() if step.state == "running"] if health in LIVE else []
    return RunPage(
        title=entry.dataset,
        dataset=entry.dataset,
        run=entry.name,
        state=health,
        sentence=_sentence(follower, health),
        facts=tuple(_facts(state)),
        command=command_of(state.started),
        filters=_filters(state, chosen),
        stages=_stages(state),
        now=tuple(sorted(running, key=lambda step: -step.last)[:MOST_RUNNING]),
        steps=tuple(ordered[:MOST_ROWS]),
        hidden=max(0, len(ordered) - MOST_ROWS),
        failures=tuple(failures[:MOST_FAILURES]),
        more_failures=max(0, len(failures) - MOST_FAILURES),
        memory=tuple(sorted(state.memory.items(), key=lambda item: stage_order(item[0]))),
        bars=tuple(value / max(busy) if max(busy) else 0.0 for value in busy),
        busiest=max(busy, default=0.0),
        bar_seconds=state.activity.width if state.activity else 0.0,
        notes=tuple(state.notes),
        problems=_problems(follower),
        finished=health not in LIVE,
        details=tuple(_details(state)),
    )


def _matches(step: StepState, chosen: Mapping[str, str]) -> bool:
    return _fits(step.stage, step.source, chosen) and chosen["state"] in ("", step.state)


def _fits(stage: str, source: str, chosen: Mapping[str, str]) -> bool:
    return chosen["stage"] in ("", stage) and chosen["source"] in ("", source)


def _filters(state: RunState, chosen: Mapping[str, str]) -> tuple[Filter, ...]:
    steps = state.steps.values()
    values = {
        "stage": sorted({step.stage for step in steps}, key=lambda stage: (stage_order(stage), stage)),
        "source": sorted({step.source for step in steps}),
        "state": sorted({step.state for step in steps}),
    }
    return tuple(Filter(name, chosen[name], _choices(values[name], chosen[name])) for name in FILTERS)


def _choices(values: Sequence[str], chosen: str) -> tuple[str, ...]:
    few = list(values[:MOST_CHOICES])
    return tuple(few if not chosen or chosen in few else [*few, chosen])


def _health(follower: Follower) -> str:
    health = follower.health()
    if health != "ended":
        return health
    return end_state((follower.state.ended or {}).get("exit_code"))


def _sentence(follower: Follower, health: str) -> str:
    end, started = follower.state.ended or {}, follower.state.started or {}
    if health == "done":
        return "This run is complete."
    if health in ("partial", "failed"):
        return f"This run ended with exit code {end.get('exit_code')}: {end.get('reason', 'the log gives no reason')}"
    if health == "dead":
        return "The driver of this run is gone, and the log has no end. Run the command again: finished work is kept."
    place = f"process {started.get('pid', '?')} on {started.get('host', 'an unknown host')}"
    if health == "silent":
        return f"The driver ({place}) exists, but has written nothing for a long time."
    return f"This run is active ({place})."


def _facts(state: RunState) -> list[Fact]:
    steps, memory = state.steps.values(), state.memory.values()
    done = sum(step.state in ("done", "reused") for step in steps)
    began = state.started["time"] if state.started else None
    seconds = max(0.0, state.last - began) if began is not None and state.last is not None else None
    nearest = max(memory, key=lambda one: one.share, default=Memory())
    found = [
        Fact("steps done", done, "count", f"of {len(state.steps):,} that have begun"),
        Fact("time", seconds, "seconds", "up to the newest event"),
        Fact("failed attempts", sum(state.causes.values()), "count", f"of {state.attempts:,}"),
        Fact("memory", nearest.share if nearest.budget else None, "percent", "of its budget, in the nearest attempt"),
    ]
    if state.activity is not None and state.activity.total and seconds:
        average = state.activity.total / seconds
        share = average / state.slots if state.slots else None
        remark = f"{average:.1f} of {counted(state.slots, 'slot')}, on average" if state.slots else "on average"
        found.append(Fact("workers busy", share, "percent", remark) if share is not None
                     else Fact("workers busy", round(average, 1), "number", remark))  # fmt: skip
    return found


def _stages(state: RunState) -> tuple[StageLine, ...]:
    lines: list[StageLine] = []
    for stage in sorted({step.stage for step in state.steps.values()}, key=lambda name: (stage_order(name), name)):
        own = [step for step in state.steps.values() if step.stage == stage]
        states = [step.state for step in own]
        lines.append(StageLine(
            stage, len(own), sum(one in ("done", "reused") for one in states), states.count("running"),
            sum(one in ("failed", "partial", STOPPED) for one in states),
            sum(count for (name, _), count in state.causes.items() if name == stage),
        ))  # fmt: skip
    return tuple(lines)


def _problems(follower: Follower) -> tuple[str, ...]:
    found = [follower.problem] if follower.problem else []
    if follower.unreadable:
        lines = counted(follower.unreadable, "line")
        found.append(f"{lines} of the log cannot be read and {'is' if follower.unreadable == 1 else 'are'} left out.")
    return tuple(found)


def _details(state: RunState) -> list[tuple[str, str]]:
    started = state.started or {}
    versions = started.get("versions")
    found = [
        ("began", moment_text(started.get("time"))),
        ("host", f"{started.get('host', '–')}, process {started.get('pid', '–')}"),
        ("recipe", str(started.get("recipe", "–"))),
    ]
    if isinstance(versions, dict):
        found.append(("versions", ", ".join(f"{name} {number}" for name, number in list(versions.items())[:30])))
    return found


def moment_text(moment: object) -> str:
    """Return a time as text, in UTC.

    >>> moment_text(1767323045.0), moment_text(None)
    ('2026-01-02 03:04:05 UTC', '–')
    """
    if not isinstance(moment, int | float) or not 0 <= moment < 1e11:
        return text_of(None, "text")
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
