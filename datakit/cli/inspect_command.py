"""Implements `datakit inspect`, which prints the description of a finished step or of a raw source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from datakit.cli.console import bytes_cell, bytes_text, note, say, say_json, table, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.normalize.inspection.report import GroupReport, RawReport
    from datakit.pipeline.lineage import Ancestor, StepDescription

FILES_SHOWN = 3


def inspect(target: str, /, *, draft: Flag = False, json: Flag = False) -> int:
    """Show what a finished step or a raw source contains.

    For a step, shows its counts, its schema, up to three sample ids, and its lineage back to the raw files. For a raw
    source, shows its groups of files, their columns and sizes, and a draft recipe. The draft runs as it is if all files
    are like the samples that were read; damage elsewhere ends the run with exit code 3. Never shows the text of a
    document.

    Examples:
      datakit inspect data/demo
      datakit inspect data/demo/consolidate-0123456789ab/manifest.json
      datakit inspect texts/part-00.jsonl.gz
      datakit inspect texts/ --draft > my-recipe.toml

    Parameters
    ----------
    target
        A step's directory or manifest, a dataset's directory (which stands for its current run), or raw files,
        given by a path, glob or URL.
    draft
        Print only the draft recipe. Not allowed for a finished step.
    json
        Print one JSON object.
    """
    from datakit.errors import UsageError
    from datakit.normalize.inspection.draft import draft_recipe
    from datakit.normalize.inspection.report import RawReport
    from datakit.pipeline.lineage import inspect as describe
    from datakit.text.compilation import NOTICE

    found = describe(target, compiling=lambda: note(NOTICE))
    if isinstance(found, RawReport):
        recipe = draft_recipe(found)
        if draft:
            say(recipe.rstrip("\n"))
            _note_problems(found)
        elif json:
            say_json({**asdict(found), "draft_recipe": recipe})
        else:
            _show_source(found, recipe)
    elif draft:
        raise UsageError(f"{target} is a finished step, but --draft is for raw sources; remove --draft")
    elif json:
        say_json(found)
    else:
        _show_step(found)
    return 0


def _show_step(step: StepDescription) -> None:
    say(f"{step.stage} of {step.dataset}: {step.directory}")
    say(wrapped(f"identity {step.identity}, fingerprint {step.fingerprint}", more="  "))
    say(wrapped(", ".join(_totals(step)), more="  "))
    for title, text in _sections(step):
        say(f"\n{title}:")
        say("\n".join(wrapped(line, more="    ") for line in text.splitlines()))
    for place in step.beside:
        note(f"also finished: {place}")


def _totals(step: StepDescription) -> Iterator[str]:
    yield counted(step.rows, "row")
    if step.text_bytes is not None:
        yield f"{bytes_text(step.text_bytes)} of text"
    if step.tokens is not None:
        yield counted(step.tokens, "token")
    yield f"{bytes_text(step.bytes)} on disk"
    yield f"{counted(step.quarantined, 'record')} in quarantine"


def _sections(step: StepDescription) -> Iterator[tuple[str, str]]:
    import msgspec

    from datakit.pipeline.lineage import contract_of, removed_by_source

    rows = [
        [part.source, part.partitions, part.rows, bytes_cell(part.text_bytes), part.tokens, bytes_text(part.bytes)]
        for part in step.parts
    ]
    yield "sources", table(("source", "partitions", "rows", "text", "tokens", "on disk"), rows)
    if step.schema:
        yield "schema", table(("column", "type"), [[column.name, column.type] for column in step.schema])
    if step.counters:
        yield "counters", table(("counter", "count"), [[name, count] for name, count in step.counters.items()])
    if step.parameters:
        yield "parameters", "\n".join(f"{name} = {value!r}" for name, value in step.parameters.items())
    if step.stage == "dedup":
        removed = [[name, *(getattr(counts, key) for key in REMOVAL), f"{counts.rate:.2%}"]
                   for name, counts in removed_by_source(step).items()]  # fmt: skip
        yield "removal", table(("source", *REMOVAL, "rate"), removed)
    if step.stage == "tokenize":
        contract = msgspec.to_builtins(contract_of(step))
        shown = {key: contract[key] for key in ("tokenizer_sha256", "encoder", "vocabulary_size", "bos", "eos")}
        yield "contract", "\n".join(f"{name} = {value!r}" for name, value in shown.items())
    if step.sample_ids:
        yield "sample ids", "\n".join(step.sample_ids)
    if step.lineage:
        yield "made from", "\n".join(_ancestor(entry) for entry in step.lineage)


REMOVAL = ("documents", "exact", "fuzzy", "retained")


def _ancestor(entry: Ancestor) -> str:
    head = f"{'  ' * entry.depth}{entry.stage} {entry.dataset}".rstrip()
    if not entry.found:
        return f"{head}: missing ({entry.directory}, identity {entry.identity})"
    if entry.seen:
        return f"{head}: see above"
    if entry.stage != "download":
        return f"{head}: {counted(entry.rows or 0, 'row')}, {entry.directory}"
    more = len(entry.files) - FILES_SHOWN
    names = ", ".join(entry.files[:FILES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    return f"{head}: {bytes_text(entry.bytes or 0)} in {counted(len(entry.files), 'raw file')}: {names}"


def _show_source(report: RawReport, recipe: str) -> None:
    say(f"{report.url}: {_files(report.files)}, {bytes_text(report.bytes)}")
    for group in report.groups:
        extensions = ", ".join(group.extensions) or "no extension"
        say()
        text = (
            f"{group.name}: {_files(group.files, f'{group.format} ')} ({extensions}), {bytes_text(group.bytes)}; "
            f"columns in {group.records:,} sampled records:"
        )
        say(wrapped(text, more="  "))
        rows = [
            [column.name, column.type, f"{column.filled:.0%}", bytes_text(column.mean_bytes), _use(group, column.name)]
            for column in group.columns
        ]
        say(table(("column", "type", "filled", "mean size", ""), rows))
        if group.sample_ids:
            say(wrapped(f"ids of the first documents: {', '.join(group.sample_ids)}", more="  "))
    _note_problems(report)
    say("\ndraft recipe:\n\n" + recipe.rstrip("\n"))
    note(f"next: datakit init {report.url}, which writes this recipe to recipe.toml")
    note("      datakit run recipe.toml")


def _note_problems(report: RawReport) -> None:
    for problem in report.problems:
        note(f"problem: {problem}")
    for group in report.groups:
        for suspicion in group.suspicions:
            note(f"suspicious: {group.name}: {suspicion}")


def _files(count: int, kind: str = "") -> str:
    return counted(count, f"{kind}file")


def _use(group: GroupReport, column: str) -> str:
    return "the text" if column == group.text else "the id" if column == group.id else ""
