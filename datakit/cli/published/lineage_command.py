"""Implements `datakit lineage`, which prints what a dataset, a step or a training run was made from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from datakit.cli.console import bytes_text, note, say, say_json, table, wrapped
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.lineage import Lineage, SourceRecord, StepRecord

Format = Literal["text", "json", "mermaid", "openlineage", "croissant"]


def lineage(target: str, /, *, format: Format = "text") -> int:
    """Show exactly what a dataset, a step or a training run was made from.

    Lists the sources with URLs, revisions and licenses, and every step with its parameters, counts, hashes, and the
    versions of datakit and its libraries. Query strings of URLs are left out, because they may hold secrets.

    Examples:
      datakit lineage data/demo
      datakit lineage data/demo --format mermaid
      datakit lineage data/demo --format croissant > data/demo/croissant.json
      datakit lineage data/demo-train/train-0123456789ab --format openlineage > events.jsonl

    Parameters
    ----------
    target
        A dataset's directory, which stands for its current run, or the directory of a step or a finished training run.
    format
        text; json: one object; mermaid: a flowchart; openlineage: one event per line; croissant: a JSON-LD file, which
        belongs in the dataset's directory.
    """
    from datakit.lineage import read_lineage
    from datakit.lineage.croissant import croissant
    from datakit.lineage.mermaid import mermaid
    from datakit.lineage.openlineage import openlineage_events

    found = read_lineage(target)
    match format:
        case "json":
            say_json(found)
        case "mermaid":
            say(mermaid(found).rstrip("\n"))
        case "openlineage":
            _say_lines(openlineage_events(found))
        case "croissant":
            say_json(croissant(found))
        case "text":
            _show(found)
    _note_missing(found)
    return 0


def _say_lines(events: Iterator[dict[str, object]]) -> None:
    import json

    from datakit.printable import escaped_json

    for event in events:
        print(escaped_json(json.dumps(event, ensure_ascii=False)))


def _note_missing(found: Lineage) -> None:
    for step in found.steps:
        if not step.found:
            note(f"warning: {step.stage} {step.identity} is not in {step.directory}; its own inputs are unknown")


def _show(found: Lineage) -> None:
    last = found.last
    say(f"{last.stage} of {last.dataset}: {last.directory}")
    say(f"  identity {last.identity}")
    say("\nsources:")
    say(table(("source", "url", "revision", "license", "files", "size"), [_source(one) for one in found.sources]))
    say("\nsteps:")
    say(table(("step", "rows", "tokens", "quarantined", "identity"), [_step(step) for step in found.steps]))
    for step in found.steps:
        if step.found:
            say(f"\n{step.name}:")
            say("\n".join(wrapped(line, "  ", "  ") for line in _facts(step)))


def _source(source: SourceRecord) -> list[str | int | None]:
    return [
        source.name, source.url or "not recorded", source.revision or "-", source.license or "not stated", source.files,
        bytes_text(source.bytes),
    ]  # fmt: skip


def _step(step: StepRecord) -> list[str | int | None]:
    return [step.name, step.rows if step.found else None, step.tokens, step.quarantined, step.identity]


def _facts(step: StepRecord) -> Iterator[str]:
    yield f"directory: {step.directory}"
    yield f"manifest: {step.checksum}, format version {step.version or 'not recorded'}, {counted(step.files, 'file')}"
    if step.inputs:
        yield f"inputs: {', '.join(dict.fromkeys(step.inputs))}"
    if step.parameters:
        yield "parameters: " + ", ".join(f"{name} = {value!r}" for name, value in sorted(step.parameters.items()))
    if step.counters:
        yield "counts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(step.counters.items()))
    for versions in step.versions:
        yield "made with: " + ", ".join(f"{name} {version}" for name, version in versions.items())
    for code in step.code:
        yield f"hash of your own code: {code}"
