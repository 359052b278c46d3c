"""Drafts a recipe for an inspected raw source: complete, so that it runs as it is, and commented, so that it is easily
edited. If the files of a group cannot become a source as they are, their table is commented out, and a comment gives
the reason.
"""

from __future__ import annotations

import json

from datakit.normalize import formats
from datakit.normalize.inspection.file_groups import as_name
from datakit.normalize.inspection.report import GroupReport, RawReport
from datakit.recipe import RESERVED
from datakit.redaction import HIDDEN
from datakit.storage import urls

SHARES = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
)  # `max_quarantined` becomes the first of these that is at least twice the share of unusable records
MANY_SOURCES = (
    "# Each folder, format and pattern of file names has a source of its own, whose",
    "# files `include` selects.",
)
WITHOUT_LIMIT = (
    "# All sampled records can be used. If another one cannot, for example because a",
    "# file is damaged, the run says so and ends with exit code 3, unless this share",
    "# of records may be left out:",
    "# [normalize]",
    "# max_quarantined = 0.001",
)
WITHOUT_PROMISE = (
    "# If a record cannot be used, for example because a file is damaged, the run",
    "# says so and ends with exit code 3, unless this share of records may be left",
    "# out:",
    *WITHOUT_LIMIT[-2:],
)
TAIL = """
[dedup]
threshold = 0.8          # duplicates share at least 80 % of their shingles
prefer = ["longest"]     # which of them to keep

[tokenize]
tokenizer = "train"      # or the path of a tokenizer.json

[tokenize.train]
vocabulary = 32768
"""


def draft_recipe(report: RawReport) -> str:
    """Draft a recipe for a source, as TOML for the user to edit, with one `[[sources]]` table per group of files."""
    name = as_name((urls.name(report.url.rstrip("/*")) or "texts").split(".", maxsplit=1)[0])
    lines = ["# Paths are relative to this file. `datakit recipe keys` describes every key."]
    if len(report.groups) > 1:
        lines += MANY_SOURCES
    lines.append(f"name = {_quoted(f'{name}-texts' if name in RESERVED else name)}")
    for group in report.groups:
        table = _source(group)
        lines += ["", *(table if group.usable else [f"# {group.reason}", *(f"# {line}" for line in table)])]
    return "\n".join([*lines, *_normalize(report), TAIL])


def _source(group: GroupReport) -> list[str]:
    lines = ["[[sources]]", f"name = {_quoted(group.name)}", f"url = {_quoted(group.url)}"]
    if HIDDEN in group.url:
        lines.insert(2, "# The URL's query string is not shown, because it may be a signature: add it again.")
    if group.include:
        lines.append(f"include = [{', '.join(map(_quoted, group.include))}]")
    if group.text != "text":
        lines.append(f"text = {_quoted(group.text or '?')}")
    if group.id not in (None, "id") and group.format != formats.TEXT:
        lines.append(f"id = {_quoted(group.id)}")
    return lines


def _normalize(report: RawReport) -> list[str]:
    """Return the lines of the table that permits unusable records. They are comments if the samples have no such
    records.
    """
    usable = [group for group in report.groups if group.usable]
    shares = [group.unusable / (group.unusable + group.records) for group in usable]
    if not any(shares):
        read = usable and not any(group.problems for group in report.groups)
        return ["", *(WITHOUT_LIMIT if read else WITHOUT_PROMISE)]
    limit = next(share for share in SHARES if 2 * max(shares) <= share or share == SHARES[-1])
    found = f"# {sum(group.unusable for group in usable):,} of the sampled records cannot be used."
    share = "# This share of each source's records may be left out; a run lists them."
    return ["", "[normalize]", found, share, f"max_quarantined = {limit}"]


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)
