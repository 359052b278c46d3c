"""Implements `datakit ferry run`, `datakit ferry list` and `datakit ferry history`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from datakit.cli.console import INDENT, bytes_text, note, say, say_json, seconds_text, table, wrapped
from datakit.cli.live.deadline import deadline
from datakit.cli.parameters import Duration, Flag
from datakit.errors import counted
from datakit.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datakit.ferries import Ferry, Record
    from datakit.ferries.record import Observed, Part
    from datakit.ferries.runner import Ended

PARENT = "./ferries"
ONE_DAY = timedelta(days=1)


def run(
    name: str,
    /,
    *,
    root: str = PARENT,
    ttl: Duration = ONE_DAY,
    ray: str | None = None,
    scale: float = 1.0,
    timeout: Duration = None,
    first: Flag = False,
    scheduled: Flag = False,
    json: Flag = False,
) -> int:
    """Run a ferry: a complete run that proves that this version works.

    A ferry runs in a new folder of its own, checks everything that it writes, and compares its bytes, CPU time and
    memory with those of earlier runs on the same kind of machine.

    Examples:
      datakit ferry run smoke --first
      datakit ferry run skewed --scale 0.01 --root /big/disk/ferries
      datakit ferry run nightly --root s3://bucket/ferries --ray auto --scheduled

    Exit code 4 means that a file differs from its manifest, or that a step's bytes differ from those of an earlier run.
    Exit code 1 means that the ferry failed for another reason, or that there is no earlier run to compare with (unless
    --first is given).

    Parameters
    ----------
    name
        A name from `datakit ferry list`.
    root
        The directory or URL that holds the history and the folders of all runs.
    ttl
        Time to live: after this time, for example 12h or 7d, `datakit gc` may remove the run's folder if the run has
        ended. It must be at least 10 minutes longer than --timeout or, without it, than the ferry's own limit.
    ray
        Run on Ray: "local", "auto", or a cluster's host:port.
    scale
        The size of generated text, relative to its full size.
    timeout
        Stop after this time, with exit code 124; by default, each ferry has its own limit.
    first
        Accept that there is no earlier run to compare with: then the exit code is 0 if nothing else is wrong.
    scheduled
        If the ferry does not pass, send an alert to the webhook whose URL is in DATAKIT_FERRY_WEBHOOK.
    json
        Print the record as one JSON object.
    """
    from datakit.ferries import Options, ferry_named, run_ferry

    ferry = ferry_named(name)
    limit = timeout or timedelta(seconds=ferry.timeout)
    options = Options(root, (ttl or ONE_DAY).total_seconds(), ray, scale, scheduled, limit.total_seconds())
    with deadline(limit):
        ended = run_ferry(ferry, options, note)
    if json:
        say_json(ended.record)
    else:
        _show(ended)
    accepted = first and ended.record.outcome == "no baseline"
    _explain(ended, accepted)
    return ExitCode.DONE if accepted else ended.exit_code


def _show(ended: Ended) -> None:
    record = ended.record
    headers = ("stage", "time", "CPU time", "calibrated", "memory", "requested", "retries", "MB per CPU-s")
    say(table(headers, [_row(part) for part in record.parts]) + "\n")
    took = seconds_text(record.ended - record.started)
    say(wrapped(f"{record.ferry}: {record.outcome} in {took}, compared with {_compared(record)}", more=INDENT))
    for one in record.requests:
        say(wrapped(_peak(one), more=INDENT))
    for name, value in record.figures.items():
        say(f"{name}: {value:.4f}")
    say(f"status:    {ended.root}/ferry_run_status.json")
    say(f"record:    {ended.root}/ferry_record.json")
    if ended.page:
        say(f"page:      {ended.page}")


def _compared(record: Record) -> str:
    return f"{counted(record.compared_with, 'earlier run')} and the bytes of {counted(record.compared_steps, 'step')}"


def _row(part: Part) -> list[str | int | None]:
    speed = part.megabytes_per_cpu_second
    return [
        part.name, seconds_text(part.wall_seconds), seconds_text(part.cpu_seconds), seconds_text(part.calibrated_cpu),
        bytes_text(part.peak_rss), _requested(part), part.retries, None if speed is None else f"{speed:.1f}",
    ]  # fmt: skip


def _requested(part: Part) -> str | None:
    return f"{bytes_text(part.task_peak)} of {bytes_text(part.requested)}" if part.requested else None


def _peak(one: Observed) -> str:
    peak = bytes_text(int(one.peak)) if one.unit == "bytes" else f"{one.peak:.1f} CPUs"
    return f"requested: {one.amount} {one.what} ({one.sizes}); peak {peak}"


def _explain(ended: Ended, accepted: bool) -> None:
    if accepted:
        note("nothing was wrong; the next run on this kind of machine is compared with this one")
    for failure in () if accepted else ended.record.failures:
        note(f"failed: {failure}")
    if not accepted and ended.record.outcome == "no baseline":
        note("--first accepts this; the next run on this kind of machine is compared with this one")
    if ended.log:
        note(f"messages of the command that failed: {ended.log}")


def list_ferries(*, json: Flag = False) -> int:
    """List all ferries: what they run, when they are scheduled, and how much CPU time and memory they may take.

    Parameters
    ----------
    json
        Print one JSON object.
    """
    from datakit.ferries import FERRIES

    if json:
        say_json({"ferries": FERRIES})
        return 0
    headers = ("ferry", "schedule (UTC)", "CPU limit", "memory limit")
    say(table(headers, [_ferry_row(ferry) for ferry in FERRIES], [_remark(ferry) for ferry in FERRIES]))
    return 0


def _ferry_row(ferry: Ferry) -> list[str]:
    return [ferry.name, ferry.schedule, f"{ferry.limits.cpu:,.0f} s", bytes_text(ferry.limits.peak_rss)]


def _remark(ferry: Ferry) -> str:
    needs = [f"{one.amount} {one.what} ({one.sizes}; peak {one.observed})" for one in ferry.requests]
    return "; ".join([ferry.description, *(["needs " + ", ".join(needs)] if needs else [])])


def history(*, root: str = PARENT, json: Flag = False) -> int:
    """Show the runs of all ferries and, for each ferry, the share that passed. Also records which ferries were killed.

    Parameters
    ----------
    root
        The directory or URL that was given to `datakit ferry run`.
    json
        Print one JSON object.
    """
    from datakit.ferries import read_history, summaries
    from datakit.ferries.history import settle

    settle(root)
    found = read_history(root)
    if found.unreadable:
        note(f"warning: {counted(found.unreadable, 'line')} of the history cannot be read and were skipped")
    shares = summaries(found.records)
    if json:
        say_json({"records": found.records, "running": found.open, "summaries": shares})
        return 0
    say(_history_table(found.records))
    for line in found.open:
        say(f"{line.ferry} {line.nonce[:12]}: running since {_time(line.started)}")
    for one in shares:
        say(f"{one.ferry}: {one}")
    return 0


def _history_table(records: Sequence[Record]) -> str:
    rows = [
        [record.ferry, _time(record.started), seconds_text(record.ended - record.started), record.outcome]
        for record in records
    ]
    return table(
        ("ferry", "started (UTC)", "time", "outcome"), rows, ["; ".join(map(str, one.failures)) for one in records]
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
