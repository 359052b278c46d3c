"""Implements `datakit run`: shows the progress, and prints one line per stage and the commands to try next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from datakit.cli.console import (
    INDENT,
    WIDTH,
    Cell,
    bytes_cell,
    bytes_text,
    count_text,
    note,
    say,
    say_json,
    seconds_text,
    table,
    wrapped,
)
from datakit.cli.live.deadline import deadline
from datakit.cli.parameters import Duration, Flag, Settings
from datakit.errors import counted, counted_plural

if TYPE_CHECKING:
    from datakit.pipeline.run_summary import StageLine
    from datakit.pipeline.running import RunResult

SHORT_COUNT = 7  # characters
CARD = "README.md"  # the dataset card, which the stage consolidate writes


def run(
    recipe: str,
    /,
    *,
    root: str = "./data",
    workers: int | None = None,
    ray: str | None = None,
    until: str | None = None,
    set_: Settings = (),
    offline: Flag = False,
    fresh: Flag = False,
    ignore_disk_space: Flag = False,
    timeout: Duration = None,
    metrics_file: str | None = None,
    metrics_port: int | None = None,
    json: Flag = False,
) -> int:
    """Run a recipe: turn its sources into a token cache.

    Finished steps are reused, and an interrupted run continues where it stopped.

    Examples:
      datakit run demo
      datakit run books.toml --root s3://bucket/data --ray auto
      datakit run books.toml --until dedup --set dedup.threshold=0.9

    Parameters
    ----------
    recipe
        A recipe file (TOML) or a name from `datakit catalog list`.
    root
        The directory or URL (s3://, gs://) to which all output is written.
    workers
        Number of tasks to run at a time; by default one per usable CPU.
    ray
        Run on Ray: "local", "auto", or a cluster's host:port. All nodes must have access to the root.
    until
        Stop after this stage: download, normalize, annotate, signatures, rules, dedup, passages, select,
        consolidate, train-tokenizer, contract, tokenize.
    set_
        Override a value of the recipe, for example sources.web.sample=0.1. Can be repeated.
    offline
        Do not list remote sources; use the last download of each.
    fresh
        First remove the dataset's own steps that have the current settings (including --set). The steps of its sources
        are kept, because other recipes may share them.
    ignore_disk_space
        Start even if the run probably needs more space than is free on a local disk.
    timeout
        Stop after this time, for example 90m or 1h30m, with exit code 124. Finished work is kept.
    metrics_file
        Write metrics to this file (OpenMetrics text) every 10 seconds. Needs `pip install '.[metrics]'`.
    metrics_port
        Serve metrics on this port of 127.0.0.1; 0 stands for any free port. Needs `pip install '.[metrics]'`.
    json
        Print one JSON object instead of the table.
    """
    from datakit.api import run as run_recipe
    from datakit.engine.arrow_without_pandas import leave_out_pandas
    from datakit.engine.observe.observer import ObserverGroup
    from datakit.engine.observe.openmetrics import published
    from datakit.engine.observe.progress import view_for_terminal
    from datakit.pipeline.run_summary import stage_lines

    leave_out_pandas()
    with deadline(timeout), published(metrics_file, metrics_port) as metrics, view_for_terminal() as view:
        result = run_recipe(
            recipe, root, workers=workers, ray=ray, until=until, settings=set_, offline=offline, fresh=fresh,
            ignore_disk_space=ignore_disk_space, observer=ObserverGroup([view, metrics]),
        )  # fmt: skip
    for line in result.notes:
        note(line)
    lines = stage_lines(result)
    if json:
        say_json(_document(result, lines))
        return 0
    say(stage_table(lines) + "\n")
    ending = "everything was already done" if result.reused else f"done in {seconds_text(result.seconds)}"
    say(wrapped(f"{result.dataset}: {ending}", more=INDENT))
    for line in (*_quarantine_lists(result), *_sources_that_left(result)):
        say(line)
    for line in _next_steps(result):
        say(line)
    return 0


def _document(result: RunResult, lines: list[StageLine]) -> dict[str, object]:
    directories = {step.label: step.directory for step in result.steps}
    return {
        "dataset": result.dataset, "root": result.root, "cache": result.cache, "run": result.run, "log": result.log,
        "seconds": result.seconds, "reused": result.reused, "steps": directories, "stages": lines,
    }  # fmt: skip


HEADERS = ("stage", "in", "kept", "text", "tokens", "on disk", "time")


def stage_table(lines: Sequence[StageLine]) -> str:
    """Return a table with one row per stage and the stage's remarks below the row. The counts are shortened if exact
    counts would make the table wider than WIDTH.
    """
    remarks = [_remarks(line) for line in lines]
    exact = table(HEADERS, [_row(line) for line in lines], remarks)
    if max(map(len, exact.splitlines())) <= WIDTH:
        return exact
    return table(HEADERS, [[_short(cell) for cell in _row(line)] for line in lines], remarks)


def _short(cell: Cell) -> Cell:
    return (count_text(cell) or "").rjust(SHORT_COUNT) if isinstance(cell, int) else cell


def _row(line: StageLine) -> tuple[Cell, ...]:
    return (
        line.stage,
        line.rows_in,
        line.rows_out,
        bytes_cell(line.text_bytes),
        line.tokens,
        bytes_text(line.disk_bytes),
        "already done" if line.reused == line.steps else seconds_text(line.seconds),
    )


def _remarks(line: StageLine) -> str:
    """Return counts of what a stage dropped and found, followed by the peak memory and the memory budget of the attempt
    that came closest to its budget.
    """
    dropped = ", ".join(counted_plural(count, why) for why, count in line.dropped.items())
    found = ", ".join(counted_plural(count, what) for what, count in line.found.items())
    memory = f"memory {bytes_text(line.peak_memory)} of {bytes_text(line.budget)}" if line.budget else ""
    return "; ".join(part for part in (dropped and f"dropped {dropped}", found, memory) if part)


def _quarantine_lists(result: RunResult) -> Iterator[str]:
    """Yield two lines for each step that left out unusable records: their number, and the path of their list."""
    for step in result.steps:
        count = step.manifest.quarantine.records
        if count:
            were = "was" if count == 1 else "were"
            yield f"{step.label}: {counted(count, 'record')} could not be used and {were} left out:"
            yield f"{INDENT}{step.directory}/quarantine/records.jsonl"


def _sources_that_left(result: RunResult) -> Iterator[str]:
    """Yield a line for each source of which no document stays, because totals over all sources hide this."""
    for step in result.steps_of("select"):
        for source, counts in step.manifest.details["sources"].items():
            if counts["records_in"] and not counts["records_out"]:
                why = ", ".join(f"{count:,} {reasons}" for reasons, count in counts["combinations"].items())
                documents = counted(counts["records_in"], "document")
                yield wrapped(f"source {source}: none of its {documents} stays ({why})", more=INDENT)


def _next_steps(result: RunResult) -> list[str]:
    last = result.steps[-1].directory
    log = [f"events:    {result.log}"] if result.log else []
    if result.cache is None:
        return [f"output:    {last}", f"inspect:   datakit inspect {last}", *log]
    return [
        f"cache:     {result.cache}",
        *(f"card:      {step.directory}/{CARD}" for step in result.steps_of("consolidate")),
        *(f"rules:     datakit rules show {_dataset(result)}" for _ in result.steps_of("rules")),
        f"inspect:   datakit inspect {result.cache}",
        f"show it:   datakit cache show {result.cache}",
        f"in Python: datakit.open_cache({result.cache!r})",
        *log,
    ]


def _dataset(result: RunResult) -> str:
    from datakit.storage import urls

    return urls.join(result.root, result.dataset)
