"""Compares the documents of two finished steps, and determines why a document of one step is not in the other.

Documents are matched by source and id. If one step lacks a document, the reason is the first stage on the way to that
step that did not pass the document on. The ids in all files are read; the texts are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from datakit.cache.layout import DOCUMENTS_SUFFIX
from datakit.errors import UsageError
from datakit.pipeline.fate.behind import Behind, steps_behind
from datakit.pipeline.fate.id_streams import Ids, IdStream, UnitedStream, mark_in, side_by_side, stream_of
from datakit.pipeline.fate.records import Report
from datakit.storage.ids import HEX_DIGITS

NO_SOURCE, INPUT, RULES, EXACT, FUZZY, SELECT, CONSOLIDATE, TOKENIZE = (
    "no-source",
    "input",
    "rules",
    "exact",
    "fuzzy",
    "select",
    "consolidate",
    "tokenize",
)
REASONS = (NO_SOURCE, INPUT, RULES, EXACT, FUZZY, SELECT, CONSOLIDATE, TOKENIZE)
REMOVALS = ("exact", "fuzzy")
SUFFIXES = {"normalize": "", "consolidate": "", "tokenize": DOCUMENTS_SUFFIX}
EXAMPLES = 3
# arguments: "-" (only in the first step) or "+" (only in the second), the source, the reason, a list of ids
Listed = Callable[[str, str, str, list[str]], None]


@dataclass(frozen=True)
class Absent:
    """The number of documents of one source that the other step lacks for one reason, and the first ids of these
    documents.

    reason: "no-source" (the other step has no such source), "input" (the other step's normalize did not produce the
    document), "rules" (a rule of the other step removes it), "exact" or "fuzzy" (the other step's dedup removed it),
    "select" (it leaves because of edits or of a final rule), "consolidate" or "tokenize" (it was quarantined in that
    stage). differs: for "input", what differs between the two
    normalize steps.
    """

    source: str
    reason: str
    documents: int
    examples: tuple[str, ...]
    differs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One of the two steps: its directory, its stage, the number of its documents, and which of them the other step
    lacks.
    """

    directory: str
    stage: str
    documents: int
    absent: tuple[Absent, ...]


@dataclass(frozen=True)
class Difference:
    """The difference between two steps. in_both: the number of documents that both steps have."""

    first: Side
    second: Side
    in_both: int


def diff(first: str, second: str, report: Report, listed: Listed | None = None) -> Difference:
    """Compare two datasets or steps. `report` is called with the number of documents read so far, the total number of
    documents to read, and the word "documents". `listed` is called with batches of the ids that only one of the two has
    (see `Listed`).

    Raises NotFoundError for a step that is not finished, and UsageError for a step that has no documents
    or whose earlier steps are missing.
    """
    sides = [_checked(steps_behind(place), place) for place in (first, second)]
    tally = _Tally(sides, listed)
    sources = list(dict.fromkeys(part.source for side in sides for part in side.last.manifest.partitions))
    total = sum(side.last.manifest.totals.rows for side in sides)
    for source in sources:
        for done in tally.add(source):
            report(done, total, "documents")
    return Difference(tally.side(0), tally.side(1), tally.in_both)


def _checked(behind: Behind, place: str) -> Behind:
    if behind.last.manifest.stage not in SUFFIXES:
        raise UsageError(
            f"{place}: {behind.last.directory} has no documents; give a step of one of the stages "
            f"{', '.join(SUFFIXES)}, or a dataset whose current run ended with such a step"
        )
    return behind


class _Tally:
    """Compares the documents of two steps, and counts those that both steps have and those that only one has."""

    def __init__(self, sides: list[Behind], listed: Listed | None) -> None:
        self._sides, self._listed = sides, listed
        # one dict for each step: (source, reason) -> number of documents that only this step has
        self._counts: tuple[dict[tuple[str, str], int], ...] = ({}, {})
        self._examples: tuple[dict[tuple[str, str], list[str]], ...] = ({}, {})
        self._documents = [0, 0]
        self.in_both = 0

    def add(self, source: str) -> Iterator[int]:
        """Compare the documents of one source, one range of ids after another. After each range, yield the number of
        documents read so far.
        """
        stages = [_stages(side, source) for side in self._sides]
        width = len(stages[0])
        for ids in side_by_side([stream for streams in stages for stream in streams]):
            parts = ids[:width], ids[width:]
            for side in (0, 1):
                here, there = parts[side][-1], parts[1 - side]
                only = here.keys[mark_in(here.keys, there[-1]) == -2]
                self._documents[side] += len(here.keys)
                self.in_both += (len(here.keys) - len(only)) * (1 - side)
                for reason, keys in _by_reason(self._sides[1 - side], source, only, there):
                    self._note(side, source, reason, keys)
            yield sum(self._documents)

    def _note(self, side: int, source: str, reason: str, keys: np.ndarray) -> None:
        counts, key = self._counts[side], (source, reason)
        counts[key] = counts.get(key, 0) + len(keys)
        examples = self._examples[side].setdefault(key, [])
        examples += _hex(keys[: EXAMPLES - len(examples)])
        if self._listed is not None:
            self._listed("-+"[side], source, reason, _hex(keys))

    def side(self, side: int) -> Side:
        """Return the first (0) or the second (1) side of the result."""
        last = self._sides[side].last
        absent = tuple(
            Absent(source, reason, count, tuple(self._examples[side][source, reason]),
                   _differs(self._sides[0], self._sides[1], source) if reason == INPUT else ())
            for (source, reason), count in self._counts[side].items()
        )  # fmt: skip
        return Side(last.directory, last.manifest.stage, self._documents[side], absent)


def _stages(behind: Behind, source: str) -> list[IdStream | UnitedStream]:
    """Return six streams of a source's ids: those in the output of normalize, those that rules removed, those that
    dedup removed, those that select lists, those in the output of consolidate, and those in the last step.
    """
    return [
        IdStream(behind.normalized.get(source), source),
        IdStream(behind.of("rules"), source),
        IdStream(behind.of("dedup"), source, "", "reason", REMOVALS),
        IdStream(behind.of("select"), source),
        IdStream(behind.of("consolidate"), source),
        stream_of(behind.last, source, SUFFIXES[behind.last.manifest.stage]),
    ]


def _by_reason(behind: Behind, source: str, keys: np.ndarray, ids: list[Ids]) -> Iterator[tuple[str, np.ndarray]]:
    """Group `keys`, the ids that a step (`behind.last`) lacks, by the first reason in REASONS that applies. ids: the
    ids that the six streams of this step (see `_stages`) hold.
    """
    if not len(keys):
        return
    normalized, by_rules, removed, selected, consolidated, _ = ids
    consolidate, select = behind.of("consolidate"), behind.of("select")
    decides = select or consolidate  # earlier versions had no select step
    drop = decides.manifest.details.get("drop", ()) if decides is not None else ()
    marks = mark_in(keys, removed)
    first = [
        (NO_SOURCE, np.full(len(keys), source not in behind.normalized)),
        (INPUT, mark_in(keys, normalized) == -2),
        (RULES, mark_in(keys, by_rules) != -2),
        *((reason, (marks == number) & (reason in drop)) for number, reason in enumerate(REMOVALS)),
        (SELECT, mark_in(keys, selected) != -2),
        (CONSOLIDATE, (mark_in(keys, consolidated) == -2) & (consolidate is not None)),
        (TOKENIZE, np.full(len(keys), True)),
    ]
    found = np.select([holds for _, holds in first], list(range(len(first))))
    for number, (reason, _) in enumerate(first):
        if (found == number).any():
            yield reason, keys[found == number]


def _differs(one: Behind, other: Behind, source: str) -> tuple[str, ...]:
    """Return what differs between two normalize steps of a source: the names of settings, "raw files" (their inputs),
    and "version" (the format version).
    """
    ours, theirs = (side.normalized[source].manifest for side in (one, other))
    names = sorted({*ours.parameters, *theirs.parameters})
    found = [name for name in names if ours.parameters.get(name) != theirs.parameters.get(name)]
    if [entry.identity for entry in ours.inputs] != [entry.identity for entry in theirs.inputs]:
        found.append("raw files")
    return (*found, "version") if ours.version != theirs.version else tuple(found)


def _hex(keys: np.ndarray) -> list[str]:
    digits = keys.tobytes().hex()
    return [digits[start : start + HEX_DIGITS] for start in range(0, len(digits), HEX_DIGITS)]
