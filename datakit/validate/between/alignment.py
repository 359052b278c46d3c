"""Compares the documents of a step with those of its inputs, id by id, in every partition.

    signatures    has exactly the normalized documents
    dedup         removes only normalized documents
    select        lists exactly the documents that dedup marked for a reason in the recipe, each with its row, and those
                  that leave because of edits
    consolidate   has the normalized documents without those that select lists and those in quarantine
    tokenize      likewise

Steps of earlier versions have no select step: there, consolidate leaves out what dedup removed, and tokenize reads the
consolidated documents. All files of a partition are sorted by id, so two files hold the same documents if their ids are
equal row by row.

Cost: parsing ids at a few ns per byte; no text is read. Memory: for each thread, 32 bytes per document of a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.cache.layout import DOCUMENTS_SUFFIX
from datakit.select.edit_documents import EMPTY, UNANNOTATED
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.parquet import read_shard
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, first_difference, ids_of, positions, read_ids
from datakit.validate.subject import Input, Subject, in_parallel

OF_EDITS = ([EMPTY], [UNANNOTATED])  # reasons that do not come from dedup
Aligned = tuple[Partition, Partition, Partition | None]  # our partition, the input's, and that of the removals


@dataclass(frozen=True)
class Pairs:
    """The inputs of the comparison. removals: the step that lists the documents that leave (select or dedup), if there
    is one. drop: the reasons for which documents leave that dedup marked; None if all documents in `removals` leave.
    quarantined: the rows that are left out of each partition of the input, by the partition's name in the step's
    quarantine.
    """

    above: Input
    removals: Input | None = None
    drop: tuple[str, ...] | None = None
    quarantined: dict[str, list[int]] | None = None


def check(step: Subject, result: Result) -> None:
    """Compare the documents of each partition with those of the step's inputs."""
    stage = step.manifest.stage
    inputs = step.inputs_of("consolidate" if stage == "tokenize" else "normalize") or step.inputs_of("normalize")
    if missing := next(filter(None, map(step.missing, ("normalize", "consolidate", "dedup", "select"))), ""):
        return result.skip(missing)
    if not inputs:
        return result.skip("the step has no such input")
    quarantined = _quarantined(step, result)
    removals = next(iter(step.inputs_of("select")), None)
    drop = None
    if removals is None and stage in ("select", "consolidate"):
        removals = next(iter(step.inputs_of("dedup")), None)
        drop = tuple(step.manifest.details.get("drop", ()))
    for entry, manifest in inputs:
        pairs = Pairs(entry, removals[0] if removals else None, drop, quarantined)
        aligned = list(_aligned(step, manifest, removals[1] if removals else None, result))
        compare = partial(_compare, step, result, pairs)
        for rows in in_parallel(compare, aligned):
            result.count("document", rows)
    return None


def _quarantined(step: Subject, result: Result) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    if step.manifest.quarantine.records:
        from datakit.engine.scheduler.finish import read_quarantine  # a tenth of a second to import

        with result.reading(step.url("quarantine/records.jsonl")):
            for record in read_quarantine(step.directory):
                rows.setdefault(record.file, []).append(record.position)
    return rows


def _aligned(step: Subject, above: Manifest, removals: Manifest | None, result: Result) -> Iterator[Aligned]:
    """Yield the partitions that belong together; report sources whose numbers of partitions differ."""
    for source in dict.fromkeys(part.source for part in above.partitions):
        theirs = above.partitions_of(source)
        ours = step.manifest.partitions_of(source)
        marks = removals.partitions_of(source) if removals is not None else [None] * len(theirs)
        if step.manifest.stage == "tokenize" and len(marks) == len(theirs):
            pairs = list(zip(theirs, marks, strict=True))
            filled = [(part, mark) for part, mark in pairs if part.rows > (mark.rows if mark is not None else 0)]
            theirs, marks = [part for part, _ in filled], [mark for _, mark in filled]
        if not len(ours) == len(theirs) == len(marks):
            result.find(step.manifest_url, f"has {len(ours)} partitions of {source!r}; its inputs have {len(theirs)}")
            continue
        yield from zip(ours, theirs, marks, strict=True)


def _compare(step: Subject, result: Result, pairs: Pairs, aligned: Aligned) -> int:
    """Compare one partition; return the number of documents in it."""
    ours, theirs, marks = aligned
    suffix = DOCUMENTS_SUFFIX if step.manifest.stage == "tokenize" else ""
    place, other = step.place(ours) + suffix, pairs.above.url(theirs)
    marked = pairs.removals.url(marks) if pairs.removals is not None and marks is not None else None
    if not step.sound(place, other, *([marked] if marked else [])):
        result.skip("the documents of damaged files are not compared")
        return 0
    with result.reading(place):
        found = read_ids(place)
        with result.reading(other):
            expected = read_ids(other)
            if step.manifest.stage == "dedup":
                strange = np.flatnonzero(~contained(found, expected))
                if len(strange):
                    result.find(place, f"removes the document {found.text(int(strange[0]))}, which is not in {other}")
                return len(found)
            if step.manifest.stage == "select":
                _check_selection(place, (found, expected), marked, pairs.drop or (), result)
                return len(found)
            keep = np.ones(len(expected), bool)
            if marked is not None:
                with result.reading(marked):
                    _leave_out(keep, expected, marked, pairs.drop, result)
            file = ours.path if step.manifest.stage == "consolidate" else theirs.path
            keep[[row for row in (pairs.quarantined or {}).get(file, ()) if row < len(keep)]] = (
                step.manifest.stage == "signatures"
            )  # a quarantined document has an empty signature
            difference = first_difference(expected[keep], found)
            if difference:
                result.find(place, f"does not match {other}: it {difference}")
            return len(found)
    return 0


def _check_selection(
    place: str, ids: tuple[Ids, Ids], marked: str | None, drop: tuple[str, ...], result: Result
) -> None:
    """Compare a selection with the normalized documents and with dedup's marks. ids: the listed ids, and the ids of all
    documents.
    """
    found, expected = ids
    table = read_shard(place, ["row", "reasons"])
    rows, keep = table["row"].to_numpy().astype(np.int64), np.ones(len(expected), bool)
    if len(rows) and not (rows.max() < len(expected) and (expected[rows].equals(found))):
        result.find(place, "lists rows that hold documents with different ids")
        return
    because_of_edits = np.array([reasons in OF_EDITS for reasons in table["reasons"].to_pylist()], bool)
    keep[rows[because_of_edits]] = False  # the check of the edits compares these
    if marked is not None:
        with result.reading(marked):
            _leave_out(keep, expected, marked, drop, result)
            marks = read_shard(marked, ["reason"])["reason"].to_pylist()
            reasons = table["reasons"].filter(pa.array(~because_of_edits)).to_pylist()
            if reasons != [[reason] for reason in marks if reason in drop]:
                result.find(place, f"gives different reasons than {marked}")
    difference = first_difference(expected[~keep], found)
    if difference:
        result.find(place, f"does not match {marked or 'its inputs, which mark no document'}: it {difference}")


def _leave_out(keep: np.ndarray, expected: Ids, marked: str, drop: tuple[str, ...] | None, result: Result) -> None:
    """Clear `keep` for the documents that a file lists or, unless `drop` is None, lists for a reason in `drop`."""
    table = read_shard(marked, ["id"] if drop is None else ["id", "reason"])
    if not table.num_rows:
        return
    at = positions(ids_of(table["id"]), expected) if len(expected) else np.full(table.num_rows, -1)
    if (at < 0).any():
        result.find(marked, "removes a document that its input does not have")
    leaves = at >= 0
    if drop is not None:
        reason = table["reason"].cast("string").combine_chunks()
        wanted = pc.call_function("is_in", [reason], pc.SetLookupOptions(value_set=pa.array(drop, pa.string())))
        leaves &= wanted.to_numpy(zero_copy_only=False)
    keep[at[leaves]] = False
