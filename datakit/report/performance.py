"""Composes the sections about the work: time by stage, the timeline, memory, and failed attempts and records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from datakit.engine.scheduler.finish import read_quarantine
from datakit.errors import counted
from datakit.report.attempts import StageWork, Timeline, Work
from datakit.report.figures import TONES, Chart, Column, Figure, Section, Table
from datakit.report.subject import Subject

MOST_ROWS = 50
LINE_NUMBER = re.compile(r" \(line \d+\)")  # part of some reasons; records that differ only in it share a row
TENTHS = [*(f"{10 * tenth}–{10 * tenth + 10}" for tenth in range(10)), "100+"]  # in percent


def performance_sections(subject: Subject, work: Work) -> Iterator[Section]:
    """Yield the sections for which the ledgers have numbers."""
    if work.stages:
        figures = [_time(work)]
        if work.timeline is not None:
            figures.insert(0, _timeline(work.timeline))
        which = "of this run" if subject.run else "that the ledgers record"
        intro = f"The times are sums over all attempts {which}, including those that failed."
        yield Section("time", "Time", intro, tuple(figures))
        yield Section("memory", "Memory", _MEMORY, (_memory(work), _shares(work)))
    if subject.steps:
        yield Section("problems", "Problems", _problems(subject, work), tuple(_problem_figures(subject, work)))


_MEMORY = "Every attempt has a budget, and an attempt that exceeds it is stopped and repeated with a larger one."


def _time(work: Work) -> Figure:
    stages = [stage.stage for stage in work.stages]
    series = [{"name": "processor time", "values": [round(one.cpu_seconds, 3) for one in work.stages],
               "tone": "accent"}]  # fmt: skip
    columns = (Column("stage"), Column("elapsed", "seconds"), Column("attempts", "count"),
               Column("attempt time", "seconds"), Column("processor time", "seconds"),
               Column("written", "bytes"))  # fmt: skip
    rows = [_times(stage) for stage in work.stages]
    sums = map(sum, zip(*rows, strict=True))
    named = [(stage.stage, *row) for stage, row in zip(work.stages, rows, strict=True)]
    most = max(work.stages, key=lambda stage: stage.cpu_seconds)
    chart = Chart("bars", {"categories": stages, "series": series, "unit": "seconds"},
                  f"{most.stage} took most processor time.")  # fmt: skip
    table = Table("Time by stage", columns, named, ("all", *sums))
    return Figure("stages", "Processor time, by stage", table, chart, wide=True)


def _times(work: StageWork) -> tuple[float, int, float, float, int]:
    return work.elapsed, work.attempts, work.seconds, work.cpu_seconds, work.written


def _timeline(timeline: Timeline) -> Figure:
    stages = list(dict.fromkeys(span.stage for span in timeline.spans))
    tones = {stage: TONES[number % len(TONES)] for number, stage in enumerate(stages)}
    spans = [[stages.index(span.stage), span.start, span.end, span.label] for span in timeline.spans]
    data = {"stages": stages, "tones": [tones[stage] for stage in stages], "spans": spans, "width": timeline.width,
            "busy": [timeline.busy[stage] for stage in stages], "unit": "seconds"}  # fmt: skip
    busiest = max(map(sum, zip(*data["busy"], strict=True)))
    columns = (Column("stage"), Column("step"), Column("began after", "seconds"), Column("ended after", "seconds"),
               Column("steps", "count"))  # fmt: skip
    rows = [(span.stage, span.label, span.start, span.end, span.steps) for span in timeline.spans]
    described = f"At most {busiest:.1f} attempts ran at the same time, on average over a bin."
    return Figure(
        "timeline", "Steps and running attempts over time", Table("Steps over time", columns, rows),
        Chart("timeline", data, described), f"Run {timeline.run}.", wide=True,
    )  # fmt: skip


def _memory(work: Work) -> Figure:
    data = {"categories": [stage.stage for stage in work.stages], "peak": [one.peak_memory for one in work.stages],
            "budget": [one.budget for one in work.stages], "unit": "bytes"}  # fmt: skip
    columns = (Column("stage"), Column("peak", "bytes"), Column("budget", "bytes"), Column("share", "percent"),
               Column("largest peak", "bytes"))  # fmt: skip
    rows = [(one.stage, one.peak_memory, one.budget, one.used if one.budget else None, one.largest)
            for one in work.stages]  # fmt: skip
    nearest = max(work.stages, key=lambda stage: stage.used)
    described = f"The attempt nearest to its budget, in {nearest.stage}, used {nearest.used:.0%} of it."
    note = "For each stage, the attempt that came closest to its budget."
    return Figure("memory-budget", "Memory against budget", Table("Memory by stage", columns, rows),
                  Chart("memory", data, described), note)  # fmt: skip


def _shares(work: Work) -> Figure:
    counts = [sum(stage.shares[tenth] for stage in work.stages) for tenth in range(len(TENTHS))]
    data = {"categories": TENTHS, "series": [{"name": "attempts", "values": counts, "tone": "accent"}],
            "unit": "count", "x": "% of the budget"}  # fmt: skip
    table = Table("Attempts by the share of the budget", (Column("% of the budget"), Column("attempts", "count")),
                  list(zip(TENTHS, counts, strict=True)), ("all", sum(counts)))  # fmt: skip
    described = f"{counted(counts[-1], 'attempt')} used more than the budget."
    return Figure("memory-shares", "Attempts by the share of their budget", table, Chart("columns", data, described))


def _problems(subject: Subject, work: Work) -> str:
    failed = sum(sum(stage.failures.values()) for stage in work.stages)
    skipped = sum(step.manifest.quarantine.records for step in subject.steps if step.manifest)
    return f"{counted(failed, 'attempt')} failed and {counted(skipped, 'record')} went into quarantine."


def _problem_figures(subject: Subject, work: Work) -> Iterator[Figure]:
    failures = [(stage.stage, cause, count) for stage in work.stages for cause, count in stage.failures.most_common()]
    if failures:
        columns = (Column("stage"), Column("cause"), Column("attempts", "count"))
        yield Figure("failures", "Failed attempts", Table("Failed attempts by cause", columns, failures))
    skipped = _quarantined(subject)
    if skipped:
        more = f"{counted(len(skipped) - MOST_ROWS, 'more row')} not shown." if len(skipped) > MOST_ROWS else ""
        columns = (Column("stage"), Column("source"), Column("reason"), Column("records", "count"))
        table = Table("Records in quarantine by reason", columns, skipped[:MOST_ROWS], more=more)
        yield Figure("quarantine", "Quarantine", table)


def _quarantined(subject: Subject) -> list[tuple[str, str, str, int]]:
    """Return (stage, source, reason, number of quarantined records) of the report's steps, the largest numbers first.
    The reasons quote no document.
    """
    rows: list[tuple[str, str, str, int]] = []
    for step in subject.steps:
        if step.manifest and step.manifest.quarantine.records:
            reasons = Counter[str]()
            for record in read_quarantine(step.directory):
                reasons[LINE_NUMBER.sub("", record.reason)] += record.records
            rows += [(step.stage, step.manifest.dataset, why, count) for why, count in reasons.items()]
    return sorted(rows, key=lambda row: -row[3])
