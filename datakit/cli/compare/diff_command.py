"""Implements `datakit diff`, which counts or lists the documents that only one of two datasets has, with the
reasons.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from datakit.cli.console import note, progress_note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.pipeline.fate import Absent, Side

HEADERS = ("", "source", "documents", "why")
WHY = {
    "no-source": "the other has no such source",
    "input": "not in the other's normalize",
    "rules": "a rule of the other removes it",
    "exact": "the other keeps its text in another source",
    "fuzzy": "near duplicate in the other",
    "select": "leaves the other after editing",
    "consolidate": "left out by the other's consolidate",
    "tokenize": "left out by the other's tokenize",
}


def diff(first: str, second: str, /, *, ids: Flag = False, json: Flag = False) -> int:
    """Compare two datasets or steps: which documents are in only one of them, and why.

    Documents are matched by source and id; the id is a hash of the text. No text is shown.

    Examples:
      datakit diff data/demo/tokenize-0123456789ab data/demo
      datakit diff data/old/consolidate-0123456789ab data/demo --json
      datakit diff data/old data/demo --ids > differences.tsv

    Parameters
    ----------
    first
        A dataset's directory, which stands for its current run, or a step's directory or manifest.
    second
        The dataset or step to compare with the first.
    ids
        Print one line per difference: - (only in the first) or + (only in the second), source, id, reason.
    json
        Print one JSON object.
    """
    from datakit.api import diff as compare
    from datakit.errors import UsageError

    if ids and json:
        raise UsageError("--ids prints lines, not JSON; give --ids or --json")
    found = compare(first, second, report=progress_note("compared"), listed=_print_ids if ids else None)
    if json:
        say_json(found)
        return 0
    sides = (("-", found.first), ("+", found.second))
    if not ids:
        for mark, side in sides:
            say(f"{mark} {side.directory}: {counted(side.documents, 'document')}")
        say(f"  in both: {counted(found.in_both, 'document')}")
        rows = [_row(mark, absent) for mark, side in sides for absent in side.absent]
        say("\n" + table(HEADERS, rows) if rows else "no differences")
    for mark, side in sides:
        for absent in side.absent:
            if absent.reason == "input":
                note(textwrap.fill(f"{mark} {absent.source}: {_input(absent)}", 80, subsequent_indent="  "))
    for side, other in ((found.first, found.second), (found.second, found.first)):
        for absent in {one.reason: one for one in reversed(side.absent)}.values():
            note(f"ask about a document: datakit why {_asked(absent, side, other)} --id {absent.examples[0]}")
    return 0


def _print_ids(mark: str, source: str, reason: str, ids: list[str]) -> None:
    say("\n".join(f"{mark}\t{source}\t{one}\t{reason}" for one in ids))


def _row(mark: str, absent: Absent) -> list[str | int | None]:
    return [mark, absent.source, absent.documents, WHY[absent.reason]]


def _input(absent: Absent) -> str:
    if not absent.differs:
        return "both normalize steps are equal; was a directory changed?"
    return f"the normalize steps differ in {', '.join(absent.differs)}"


def _asked(absent: Absent, side: Side, other: Side) -> str:
    """Return the directory to give to `datakit why` for a document of `side` that is absent from `other`. It is the
    directory of `other` or, if `other` never read the document, the directory of `side`.
    """
    return (side if absent.reason in ("no-source", "input") else other).directory
