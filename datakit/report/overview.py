"""Composes the top of a report: a sentence, the main numbers, and the facts about the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from datakit.errors import counted
from datakit.lineage.graph import Lineage
from datakit.report.attempts import Work
from datakit.report.counts import SourceCounts, total
from datakit.report.figures import Fact
from datakit.report.subject import Subject
from datakit.report.training import last_figures, training_time

LATEST_MOMENT = 1e11  # seconds since 1970


def lead(subject: Subject, work: Work) -> str:
    """Return one sentence about the state of the subject."""
    run = subject.run
    if subject.kind == "training run":
        return "A finished training run." if subject.manifest else "A training run that is not finished."
    if run is None:
        return f"A dataset made in {counted(len(subject.steps), 'step')}."
    if run.ended is None:
        return "A run that is active or was killed: its log has no end."
    if run.exit_code:
        return f"A run that ended with exit code {run.exit_code}: {run.reason}"
    before = f", of which {len(run.reused):,} were done before" if run.reused else ""
    return f"A complete run of {counted(len(subject.steps), 'step')}{before}."


def facts(subject: Subject, sources: Sequence[SourceCounts], work: Work) -> Iterator[Fact]:
    """Yield the numbers at the top of the page."""
    if subject.kind == "training run":
        yield from (Fact(name, value, "number") for name, value in last_figures(subject))
        if subject.manifest is not None:
            yield Fact("tokens trained on", subject.manifest.totals.tokens, "count")
        if (took := training_time(subject)) is not None:
            remark = "in steps, saves and evaluations"
            yield Fact("training time", took[0], "seconds", remark if took[1] else f"{remark}; estimated")
    everything = total(sources) if sources else None
    if everything is not None:
        remark = f"of {everything.records + everything.added:,} records" if everything.records is not None else ""
        yield Fact("documents", everything.kept, "count", remark)
        if everything.tokens is not None:
            yield Fact("tokens", everything.tokens, "count", f"in {counted(everything.sources, 'source')}")
        yield Fact("share kept", everything.retained, "percent", _lost(everything))
        yield Fact("text", everything.text_bytes, "bytes", "of the documents that were kept")
    elapsed = sum(stage.elapsed for stage in work.stages)
    if work.stages:
        processor = sum(stage.cpu_seconds for stage in work.stages)
        name = "time of the data steps" if subject.kind == "training run" else "time"
        yield Fact(name, elapsed, "seconds", f"{processor:,.1f} s of processor time")
    if subject.kind != "training run":
        failed = sum(sum(stage.failures.values()) for stage in work.stages)
        attempts = sum(stage.attempts for stage in work.stages)
        yield Fact("failed attempts", failed, "count", f"of {attempts:,}")


def _lost(everything: SourceCounts) -> str:
    duplicates = sum(count for why, count in (everything.removed + everything.left_out).items() if "duplicate" in why)
    return counted(duplicates, "duplicate")


def about(subject: Subject, lineage: Lineage | None) -> Iterator[tuple[str, str]]:
    """Yield the facts below the numbers, as pairs of a name and a value."""
    yield "directory", subject.directory
    run = subject.run
    if run is not None:
        yield "run", run.run
        yield "recipe", run.recipe
        yield "machine", run.host
        yield "began", _moment(run.started)
        if run.ended is not None:
            yield "ended", _moment(run.ended)
        if run.failed:
            yield "failed steps", ", ".join(sorted(place.rpartition("/")[2] for place in run.failed))
    if lineage is not None and run is None:
        yield "identity", lineage.last.identity
        if lineage.last.finished is not None:
            yield "finished", _moment(lineage.last.finished)
    licenses = dict.fromkeys(source.license for source in lineage.sources if source.license) if lineage else {}
    if licenses:
        yield "licenses", ", ".join(licenses)


def _moment(seconds: object) -> str:
    """Return a time as text; "unknown" if the log is damaged and the value cannot be a time."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < LATEST_MOMENT:
        return "unknown"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
