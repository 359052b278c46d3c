"""Drafts a recipe for an inspected raw source: complete, so that it runs as it is, and commented, so that it is easily
edited. Comments give the evidence for the text column, what a run would refuse and is therefore left out, and what is
suspicious. If the files of a group cannot become a source as they are, their table is commented out, and a comment
gives the reason.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datakit.errors import counted
from datakit.normalize import formats
from datakit.normalize.inspection.file_groups import as_name, pattern_of
from datakit.normalize.inspection.licenses import agreed
from datakit.normalize.inspection.report import GroupReport, RawReport
from datakit.printable import one_line
from datakit.recipe import RESERVED
from datakit.redaction import HIDDEN
from datakit.storage import globs, urls

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
WIDTH = 79  # of comments
SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte of a name that is not UTF-8
UNITS = ("B", "kB", "MB", "GB", "TB")
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


@dataclass(frozen=True)
class RecipePlace:
    """The file for which a recipe is drafted. path: its absolute path. relative: True if paths in the recipe shall be
    relative to its folder.
    """

    path: str
    relative: bool

    def url(self, url: str) -> str:
        """Return a source's URL as the recipe states it."""
        if not self.relative or not urls.is_local(url):
            return url
        return os.path.relpath(urls.local_path(url), os.path.realpath(os.path.dirname(self.path)))

    def itself(self, url: str, include: Sequence[str]) -> list[str]:
        """Return a pattern of the recipe's file if a source would read it as data."""
        base = globs.locate(url).base if urls.is_local(url) else ""
        inside = os.path.relpath(self.path, base) if os.path.isdir(base) else ".."
        read = not inside.startswith("..") and (not include or globs.matcher(include).fullmatch(inside))
        return [pattern_of(inside)] if read else []


def draft_recipe(report: RawReport, place: RecipePlace | None = None) -> str:
    """Draft a recipe for a source, as TOML for the user to edit, with one `[[sources]]` table per group of files.

    place: the file that the recipe is for; without it, URLs are those of the report.
    """
    name = as_name((urls.name(report.url.rstrip("/*")) or "texts").split(".", maxsplit=1)[0])
    lines = ["# Paths are relative to this file. `datakit recipe keys` describes every key."]
    if len(report.groups) > 1:
        lines += MANY_SOURCES
    lines.append(f"name = {_quoted(f'{name}-texts' if name in RESERVED else name)}")
    dropped = dropped_columns(report)
    for group in report.groups:
        table, reason = _source(group, report, place), _reason(group, dropped)
        lines += ["", *([*comment(reason), *(f"# {line}" for line in table)] if reason else table)]
    return "\n".join([*lines, *_normalize(report, dropped), TAIL])


def usable_groups(report: RawReport) -> list[GroupReport]:
    """Return the groups that become sources of the draft."""
    dropped = dropped_columns(report)
    return [group for group in report.groups if not _reason(group, dropped)]


def dropped_columns(report: RawReport) -> dict[str, str]:
    """Return the columns that the draft leaves out, with the reasons. They are left out of every source."""
    return {name: reason for group in report.groups if group.usable for name, reason in group.dropped.items()}


def comment(text: str) -> list[str]:
    """Return a text as lines of comments."""
    return textwrap.wrap(one_line(text), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False,
                         break_long_words=False)  # fmt: skip


def _reason(group: GroupReport, dropped: dict[str, str]) -> str:
    """Return the reason why a group does not become a source, or ""."""
    if not group.usable:
        return group.reason
    if SURROGATE.search(group.url):
        return f"the name of the folder {one_line(group.url)} is not UTF-8; rename it"
    needed = next((name for name in (group.text, group.id) if name in dropped), None)
    return f"the column {needed!r} is left out of all sources (drop below), and is needed here" if needed else ""


def _source(group: GroupReport, report: RawReport, place: RecipePlace | None) -> list[str]:
    lines = [*comment(_summary(group)), "[[sources]]", f"name = {_quoted(group.name)}"]
    if HIDDEN in group.url:
        lines.append("# The URL's query string is not shown, because it may be a signature: add it again.")
    lines.append(f"url = {_quoted(place.url(group.url) if place else group.url)}")
    if group.include:
        lines.append(f"include = [{', '.join(map(_quoted, group.include))}]")
    lines += _exclude(group, place.itself(group.url, group.include) if place else [])
    lines += _license(report)
    evidence = comment(f"{group.text!r} is taken for the text: {group.text_evidence}") if group.text_evidence else []
    if group.text != "text":
        lines += [*evidence, f"text = {_quoted(group.text or '?')}"]
    elif evidence:
        lines += evidence
    if group.id not in (None, "id") and group.format != formats.TEXT:
        lines.append(f"id = {_quoted(group.id)}")
    for suspicion in group.suspicions:
        lines += comment(f"suspicious: {suspicion}")
    return lines


def _summary(group: GroupReport) -> str:
    size, unit = float(group.bytes), 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    about = f"{counted(group.files, f'{group.format} file')}, {size:,.3g} {UNITS[unit]}"
    return f"{about}; texts of {group.mean_text_bytes:,.0f} bytes on average" if group.mean_text_bytes else about


def _exclude(group: GroupReport, itself: list[str]) -> list[str]:
    """Return the lines that leave files out. itself: the pattern of this recipe's file, if it would be read as data."""
    if not group.exclude:
        return [f"exclude = [{_quoted(one)}]   # this file" for one in itself]
    lines = ["# A run would refuse these files:"]
    lines += [line for reason in dict.fromkeys(group.exclude.values()) for line in comment(f"- {reason}")]
    return [*lines, "exclude = [", *(f"    {_quoted(pattern)}," for pattern in [*group.exclude, *itself]), "]"]


def _license(report: RawReport) -> Iterator[str]:
    license_ = agreed(report.licenses)
    if license_ is not None:
        yield f"license = {_quoted(license_)}   # {', '.join(one.file for one in report.licenses if one.license)}"
    elif report.licenses:
        found = ", ".join(f"{one.file} ({one.license or 'not recognized'})" for one in report.licenses)
        yield from comment(f"license: see {found}, and set `license` to an SPDX identifier or a URL")


def _normalize(report: RawReport, dropped: dict[str, str]) -> list[str]:
    """Return the lines of the table that permits unusable records and leaves columns out. Without either, they are
    comments.
    """
    usable = usable_groups(report)
    shares = [group.unusable / (group.unusable + group.records) for group in usable]
    lines = [line for reason in dropped.values() for line in comment(reason)]
    lines += [f"drop = [{', '.join(map(_quoted, dropped))}]"] if dropped else []
    if not any(shares):
        read = usable and not any(group.problems for group in report.groups)
        rest = WITHOUT_LIMIT if read else WITHOUT_PROMISE
        return ["", "[normalize]", *lines, *rest[:-2], rest[-1]] if dropped else ["", *rest]
    limit = next(share for share in SHARES if 2 * max(shares) <= share or share == SHARES[-1])
    found = f"# {sum(group.unusable for group in usable):,} of the sampled records cannot be used."
    share = "# This share of each source's records may be left out; a run lists them."
    return ["", "[normalize]", *lines, found, share, f"max_quarantined = {limit}"]


def _quoted(text: str | None) -> str:
    """Return a text as a TOML string. Unlike JSON, TOML requires an escape for DEL."""
    return SURROGATE.sub("?", json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f"))
