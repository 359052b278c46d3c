"""Renders the dataset card: a README.md with a table of counts per source, a list of the steps that the dataset was
made from, and front matter for dataset hubs. The card contains no dates or host names, so the same dataset always gets
the same card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from datakit.storage.manifest import data_path

SIZE_STEPS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000)
NORMALIZE = "normalize/"  # prefix of the names of normalize's counters
LEFT_OUT = {  # why normalize left records out: counter -> heading
    "other_record_type": "records of other types",
    "other_status": "other HTTP statuses",
    "other_media_type": "other media types",
    "missing": "no text",
    "blank": "blank",
    "duplicates": "exact duplicates",
    "where_dropped": "by where",
    "sample_dropped": "by sample",
    "limit_dropped": "by limit",
    "transform_dropped": "by transform",
    "quarantined": "quarantined",
}
SIZE_NAMES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B")


@dataclass(frozen=True)
class SourceCounts:
    """The counts of one source: partitions; records read, removed (for each reason) and written; and bytes of text.

    normalized: the counters of the source's normalize step. buckets: the documents in each document bucket.
    """

    name: str
    partitions: int
    records_in: int
    dropped: dict[str, int]
    records_out: int
    text_bytes: int
    normalized: Mapping[str, int] = field(default_factory=dict)
    buckets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Upstream:
    """A step whose output the dataset was made from. path: the step's directory, relative to the dataset's."""

    stage: str
    source: str | None
    identity: str
    path: str


def render(
    dataset: str, fingerprint: str, sources: Sequence[SourceCounts], lineage: Sequence[Upstream], reasons: Sequence[str]
) -> str:
    """Return the card as Markdown. lineage: the steps to list. reasons: the reasons for removal that get a column."""
    body = [*_body(dataset, sources, reasons), *_buckets(sources), *_left_out(sources), *_lineage(lineage)]
    return "\n".join([*_front_matter(dataset, sources), "", *body]) + (
        f"\nThis step's fingerprint is `{fingerprint}`; `manifest.json` holds every parameter, checksum and counter.\n"
    )


def _front_matter(dataset: str, sources: Sequence[SourceCounts]) -> list[str]:
    lines = ["---", f"pretty_name: {json.dumps(dataset)}", "tags:", "- datakit", "size_categories:"]
    lines += [f"- {size_category(sum(source.records_out for source in sources))}", "configs:"]
    for source in sources:  # one configuration per source, because sources differ in their columns
        lines += [f"- config_name: {json.dumps(source.name)}", "  data_files:", "  - split: train"]
        lines += [f"    path: {json.dumps(data_path(source.name, 'part-*.parquet'))}"]
    return [*lines, "---"]


def _body(dataset: str, sources: Sequence[SourceCounts], reasons: Sequence[str]) -> list[str]:
    columns = ["source", "partitions", "documents in", *(f"dropped: {reason}" for reason in reasons), "kept", "text"]
    lines = [
        f"# {dataset}",
        "",
        "Cleaned documents, one per row: `id` (xxh3-128 of the text as normalized), `text`, `source`, `source_id`, the",
        "columns of the source, and `edited_id` (null: the text is as it was). Sorted by `id` in each source; the",
        "partitions of a source are ranges of ids.",
        "",
        f"| {' | '.join(columns)} |",
        "|---|" + "---:|" * (len(reasons) + 4),
    ]
    total = SourceCounts(
        "all",
        sum(source.partitions for source in sources),
        sum(source.records_in for source in sources),
        {reason: sum(source.dropped.get(reason, 0) for source in sources) for reason in reasons},
        sum(source.records_out for source in sources),
        sum(source.text_bytes for source in sources),
    )
    return lines + [_row(source, reasons) for source in [*sources, total]]


def _row(source: SourceCounts, reasons: Sequence[str]) -> str:
    dropped = "".join(f" {source.dropped.get(reason, 0):,} |" for reason in reasons)
    counts = f"| {source.name} | {source.partitions:,} | {source.records_in:,} |"
    return f"{counts}{dropped} {source.records_out:,} | {source.text_bytes / 1e6:,.1f} MB |"


def _buckets(sources: Sequence[SourceCounts]) -> list[str]:
    """Return the lines about the column `bucket`; [] if no source is divided."""
    rows = [(source.name, name, count) for source in sources for name, count in source.buckets.items()]
    if not rows:
        return []
    lines = [
        "",
        "The column `bucket` names the document bucket of each document (null: the source is not divided). Documents",
        "in each bucket:",
        "",
        "| source | bucket | documents |",
        "|---|---|---:|",
    ]
    return lines + [f"| {source} | {name} | {count:,} |" for source, name, count in rows]


def _left_out(sources: Sequence[SourceCounts]) -> list[str]:
    """Return the lines of a table of the records that normalize left out, counted by reason; [] if there are none."""
    shown = {
        f"{NORMALIZE}{name}": heading
        for name, heading in LEFT_OUT.items()
        if any(source.normalized.get(f"{NORMALIZE}{name}") for source in sources)
    }
    if not shown:
        return []
    lines = [
        "",
        "Records left out before (by normalize):",
        "",
        f"| {' | '.join(['source', 'read', *shown.values()])} |",
    ]
    lines.append("|---|" + "---:|" * (len(shown) + 1))
    for source in sources:
        counts = [source.normalized.get(name, 0) for name in (f"{NORMALIZE}records_in", *shown)]
        lines.append(f"| {source.name} |" + "".join(f" {count:,} |" for count in counts))
    return lines


def _lineage(lineage: Sequence[Upstream]) -> list[str]:
    lines = ["", "## Made from", "", "| step | source | identity | manifest |", "|---|---|---|---|"]
    return lines + [f"| {up.stage} | {up.source or ''} | `{up.identity}` | `{up.path}` |" for up in lineage] + [""]


def size_category(rows: int) -> str:
    """Return the category in which dataset hubs place a dataset of `rows` rows.

    >>> size_category(999), size_category(10_000), size_category(10**12)
    ('n<1K', '10K<n<100K', 'n>10B')
    """
    above = sum(rows >= step for step in SIZE_STEPS)
    if above == 0:
        return "n<1K"
    return f"{SIZE_NAMES[above - 1]}<n<{SIZE_NAMES[above]}" if above < len(SIZE_STEPS) else f"n>{SIZE_NAMES[-1]}"
