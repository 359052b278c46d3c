"""Writes the dataset card and the other descriptions that are published beside the documents.

README.md has the counts of the consolidate step's own card, preceded by front matter that names the licenses, the task,
the size and the files, and followed by tables of the licenses, of personal data, of the columns and of the steps behind
the dataset. With this front matter, `datasets.load_dataset` opens the published folder. lineage.json and
croissant.json hold the same for programs. None of them holds a time or a path of the publisher's machine: a source that
was read from a disk is listed without its folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from datakit.consolidate.card import size_category
from datakit.errors import CorruptError
from datakit.lineage import SourceRecord, StepRecord
from datakit.lineage.croissant import croissant
from datakit.printable import printable
from datakit.publish import licenses
from datakit.publish.documents import Documents
from datakit.publish.record import FILE_NAME as RECORD
from datakit.storage import urls
from datakit.storage.atomic import hash_url
from datakit.storage.manifest import data_path

FILE_NAME, LINEAGE, CROISSANT = "README.md", "lineage.json", "croissant.json"
MADE_FROM = "\n## Made from\n"  # the heading of the step's own card at which its list of steps begins
FENCE = "---\n"
DEFAULT = "default"  # the name of the configuration that `load_dataset` opens if none is named


def render_card(documents: Documents) -> str:
    """Return the dataset card as Markdown. Raises CorruptError if the step's own card is damaged."""
    parts = [
        *_front_matter(documents),
        _counts(documents),
        *_licenses(documents),
        *_personal(documents),
        *_columns(documents),
        *_steps(documents),
        f"\nMade by datakit from the step `{documents.manifest.identity}`. `{RECORD}` lists every file with",
        f"its SHA-256, `{LINEAGE}` every step with its parameters and counts.",
    ]
    return "\n".join(parts) + "\n"


def _front_matter(documents: Documents) -> Iterator[str]:
    yield from ("---", f"pretty_name: {json.dumps(documents.dataset)}")
    yield from licenses.front_matter(documents.licenses)
    yield from ("task_categories:", "- text-generation", "tags:", "- datakit")
    yield from ("size_categories:", f"- {size_category(documents.manifest.totals.rows)}", "configs:")
    filled = [source for source in documents.sources if _rows(documents, source)]  # `datasets` refuses empty ones
    alike = len({tuple(documents.columns[source]) for source in filled}) == 1
    if alike and len(filled) > 1 and DEFAULT not in documents.sources:
        paths = [json.dumps(_pattern(source)) for source in filled]
        yield from _config(DEFAULT, ["    path:", *(f"    - {path}" for path in paths)])
    for source in filled:
        yield from _config(source, [f"    path: {json.dumps(_pattern(source))}"])
    yield "---"


def _rows(documents: Documents, source: str) -> int:
    return sum(part.rows for part in documents.manifest.partitions_of(source))


def _config(name: str, paths: list[str]) -> list[str]:
    return [f"- config_name: {json.dumps(name)}", "  data_files:", "  - split: train", *paths]


def _pattern(source: str) -> str:
    return data_path(source, "part-*.parquet")


def _counts(documents: Documents) -> str:
    """Return the text and the tables of counts of the step's own card."""
    url = urls.join(documents.directory, FILE_NAME)
    recorded = documents.manifest.files_by_path.get(FILE_NAME)
    if recorded is None or hash_url(url) != (recorded.xxh3, recorded.bytes):
        raise CorruptError(
            f"{url} differs from what its manifest states; restore it, or remove the step's directory and run again"
        )
    text = urls.read_bytes(url).decode()
    body = text.removeprefix(FENCE).partition(FENCE)[2]
    return body.partition(MADE_FROM)[0].rstrip("\n")


def _licenses(documents: Documents) -> Iterator[str]:
    found = {source.name: source for source in documents.lineage.sources}
    yield from ("", "## Licenses", "", "| source | license | from | revision |", "|---|---|---|---|")
    for name in documents.sources:
        license_ = documents.licenses[name]
        link = licenses.link(license_)
        shown = f"[{_cell(license_)}]({link})" if link else _cell(license_)
        source = found.get(name)
        yield f"| {name} | {shown} | {_cell(_origin(source) or '')} | {_cell((source and source.revision) or '')} |"


def _personal(documents: Documents) -> Iterator[str]:
    yield from ("", "## Personal data", "", "| source | personal data |", "|---|---|")
    for status in documents.personal:
        yield f"| {status.source} | {_cell(status.describe())} |"


def _columns(documents: Documents) -> Iterator[str]:
    yield from ("", "## Columns", "", "| source | columns |", "|---|---|")
    for source in documents.sources:
        columns = ", ".join(f"{column.name} ({column.type})" for column in documents.columns[source])
        yield f"| {source} | {_cell(columns)} |"


def _steps(documents: Documents) -> Iterator[str]:
    yield from ("", "## Made from", "", "| step | documents | quarantined | identity |", "|---|---:|---:|---|")
    for step in documents.lineage.steps:
        rows = f"{step.rows:,}" if step.found and step.stage != "download" else ""
        yield f"| {_cell(step.name)} | {rows} | {step.quarantined:,} | `{step.identity}` |"


def _cell(text: str) -> str:
    """Return a text as the content of a table cell."""
    return " ".join(printable(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _origin(source: SourceRecord | None) -> str | None:
    """Return the URL of a source; None for one that was read from a disk, since its path is the publisher's own."""
    return None if source is None or source.url is None or urls.is_local(source.url) else source.url


def lineage_file(documents: Documents) -> bytes:
    """Return the content of lineage.json: the sources, and all steps with parameters and counts."""
    found = {source.name: source for source in documents.lineage.sources}
    described = {
        "dataset": documents.dataset,
        "sources": [_source(name, found.get(name), documents) for name in documents.sources],
        "steps": [_step(step) for step in documents.lineage.steps],
    }
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _source(name: str, source: SourceRecord | None, documents: Documents) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "license": documents.licenses[name]}
    if source is not None:
        described |= {"url": _origin(source), "revision": source.revision, "identity": source.identity}
        described |= {"files": source.files, "bytes": source.bytes}
    return described


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "name": step.name, "stage": step.stage, "identity": step.identity, "fingerprint": step.fingerprint,
        "version": step.version, "inputs": step.inputs, "rows": step.rows, "quarantined": step.quarantined,
        "parameters": _parameters(step), "counters": step.counters,
    }  # fmt: skip


def _parameters(step: StepRecord) -> dict[str, Any]:
    """Return the parameters of a step without the addresses of model servers, which are the publisher's own."""
    annotators = step.parameters.get("annotators")
    if step.stage != "annotate" or not isinstance(annotators, dict):
        return dict(step.parameters)
    shown = {name: {key: value for key, value in one.items() if key != "url"} for name, one in annotators.items()}
    return {**step.parameters, "annotators": shown}


def croissant_file(documents: Documents, lineage: bytes) -> bytes:
    """Return the content of croissant.json. lineage: that of lineage.json, whose hash the file states."""
    described = croissant(documents.lineage, (LINEAGE, lineage))
    described["isBasedOn"] = [url for source in documents.lineage.sources if (url := _origin(source))]
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
