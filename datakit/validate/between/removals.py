"""Checks the reasons of removals: every representative is a document that dedup retained, and exactly the second and
later copies of a text in several sources were removed as exact duplicates.

Each range of ids is read from all sources together, so that equal ids meet. A representative may lie in any range, so
the removals are first sorted into files by the ids of their representatives (`spill.py`).

Cost: parsing all ids, in the normalized files and in the removals. Memory: the ids of one range of all sources, about
20 bytes each, and one bucket of removals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datakit.storage.ids import top_bits
from datakit.storage.manifest import Partition
from datakit.storage.parquet import iterate_shard
from datakit.storage.stale_files import scratch_directory
from datakit.validate.between.spill import Spill, kept, removed
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, ids_in_range, ids_of, joined, positions
from datakit.validate.inside.manifest_claims import NUMBERED
from datakit.validate.subject import Subject

RANGE_IDS = 1_000_000  # number of ids that are read at once


@dataclass(frozen=True)
class Source:
    """A source of a dedup step. files: the range of ids of each partition, and the URLs of its documents and its
    removals. left_out: the URLs of the lists of the documents that rules remove, of which dedup takes no notice.
    """

    name: str
    files: tuple[tuple[tuple[int, int], str, str], ...]
    left_out: tuple[str, ...] = ()

    def removals_with(self, identity: str) -> str:
        """Return the URL of the removals whose range holds an id (32 hex digits)."""
        value = int(identity, 16)
        for (index, count), _, marks in self.files:
            if value * count >> 128 == index:
                return marks
        return self.files[0][2]  # the partitions of the input are not those of this step, which other checks report


def check(step: Subject, result: Result) -> None:
    """Compare the reason and the representative of each removal with the documents of all sources."""
    if missing := step.missing("normalize"):
        return result.skip(missing)
    sources = sources_of(step)
    if not step.sound(*(url for source in sources for _, *both in source.files for url in both)):
        return result.skip("files of this step or of its inputs are damaged")
    with scratch_directory() as folder, result.reading(step.manifest_url):
        spill = Spill(folder, step.manifest.totals.rows, [source.name for source in sources])
        for number, source in enumerate(sources):
            for _, _, marks in source.files:
                with result.reading(marks):
                    spill.add(spill.removals_of(marks, number))
        _check_representatives(sources, spill, step, result)
    _check_copies(sources, step, result)
    return None


def sources_of(step: Subject) -> list[Source]:
    """Return the sources of a dedup step in the order of the recipe."""
    found = []
    for entry, manifest in step.inputs_of("normalize"):
        for name in dict.fromkeys(part.source for part in manifest.partitions):
            ours, theirs = step.manifest.partitions_of(name), manifest.partitions_of(name)
            files = tuple(
                (_range(one), entry.url(one), step.place(two)) for one, two in zip(theirs, ours, strict=False)
            )
            lists = [rules.url(one) for rules, listed in step.inputs_of("rules") for one in listed.partitions_of(name)]
            found.append(Source(name, files, tuple(lists)))
    return found


def _range(part: Partition) -> tuple[int, int]:
    match = NUMBERED.fullmatch(part.path.rpartition("/")[2])
    return (int(match[1]), int(match[2])) if match else (0, 1)


def overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if two ranges of ids overlap. A range (index, count) is one of `count` equal ranges.

    >>> overlaps((1, 2), (3, 4)), overlaps((1, 2), (1, 4))
    (True, False)
    """
    return one[0] * other[1] < (other[0] + 1) * one[1] and other[0] * one[1] < (one[0] + 1) * other[1]


def _check_representatives(sources: Sequence[Source], spill: Spill, step: Subject, result: Result) -> None:
    for bucket in range(spill.count):
        rows = spill.bucket(bucket)
        result.count("removal", len(rows))
        if (rows["kept_source"] < 0).any():
            result.find(step.manifest_url, "has a removal whose representative is of an unknown source")
        for number, source in enumerate(sources):
            mine = rows[rows["kept_source"] == number]
            if len(mine) and (lacking := _check_kept(source, mine, (bucket, spill.count), result)):
                row, name = lacking
                other = removed(mine).text(row)
                place = sources[int(mine["source"][row])].removals_with(other)
                difference = f"names the document {name}, which {source.name!r} lacks, as the representative of {other}"
                result.find(place, difference)


def _check_kept(source: Source, rows: np.ndarray, ids: tuple[int, int], result: Result) -> tuple[int, str] | None:
    """Find removals whose representative was removed from the source. Return the first removal whose representative is
    not in the source, as (row, id of the representative), or None if there is none.
    """
    wanted, found = kept(rows), np.zeros(len(rows), bool)
    for span, documents, marks in source.files:
        if not overlaps(span, ids):
            continue
        here, gone = ids_in_range(documents, *ids), ids_in_range(marks, *ids)
        if len(here):
            found |= positions(wanted, here) >= 0
        if len(gone):
            lost = np.flatnonzero(positions(wanted, gone) >= 0)
            if len(lost):
                text = f"removes the document {wanted.text(int(lost[0]))}, which represents a removed document"
                result.find(marks, text)
    row = int(np.argmin(found))
    return None if found[row] else (row, wanted.text(row))


def _check_copies(sources: Sequence[Source], step: Subject, result: Result) -> None:
    """Find documents that were wrongly removed, or wrongly kept, as copies of a text in an earlier source."""
    documents, ranges = sum(entry["documents"] for entry in step.manifest.details["sources"].values()), 1
    while documents > ranges * RANGE_IDS:
        ranges *= 2
    for index in range(ranges):
        found = [_in_range(source, (index, ranges), result) for source in sources]
        every = joined([ids for ids, _ in found])
        owner = np.repeat(np.arange(len(sources)), [len(ids) for ids, _ in found])
        again = _repeats(every)
        for number, (source, (_, exact)) in enumerate(zip(sources, found, strict=True)):
            _compare_copies(source, every[np.sort(again[owner[again] == number])], exact, result)
        result.count("document", len(every))


def _repeats(ids: Ids) -> np.ndarray:
    """Return the positions of the ids that also occur at an earlier position."""
    order = np.lexsort((ids.low, ids.high))  # stable: equal ids keep their order
    high, low = ids.high[order], ids.low[order]
    return order[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]


def _in_range(source: Source, ids: tuple[int, int], result: Result) -> tuple[Ids, Ids]:
    """Return the source's documents in a range, without those that rules remove, and those of them that were removed as
    exact duplicates.
    """
    documents, exact = list[Ids](), list[Ids]()
    for span, url, marks in source.files:
        if overlaps(span, ids):
            with result.reading(url):
                documents.append(ids_in_range(url, *ids))
            with result.reading(marks):
                exact.append(_exact_in_range(marks, ids))
    every = joined(documents)
    for url in source.left_out:
        with result.reading(url):
            gone = ids_in_range(url, *ids)
            every = every[positions(every, gone) < 0] if len(gone) and len(every) else every
    return every, joined(exact)


def _exact_in_range(url: str, ids: tuple[int, int]) -> Ids:
    found = []
    for table in iterate_shard(url, ["id", "reason"]):
        some = ids_of(table["id"])
        chosen = (np.array(table["reason"].to_pylist(), object) == "exact") & (top_bits(some.high, ids[1]) == ids[0])
        found.append(some[chosen])
    return joined(found)


def _compare_copies(source: Source, expected: Ids, exact: Ids, result: Result) -> None:
    if expected.equals(exact):
        return
    wrong = np.flatnonzero(positions(exact, expected) < 0) if len(expected) else np.arange(len(exact))
    if len(wrong):
        name = exact.text(int(wrong[0]))
        difference = f"removes {name} as an exact duplicate, but no earlier source has this document"
    else:
        lost = np.flatnonzero(positions(expected, exact) < 0) if len(exact) else np.arange(len(expected))
        name = expected.text(int(lost[0]))
        difference = f"does not remove {name} as an exact duplicate, although an earlier source has this document"
    result.find(source.removals_with(name), difference)
