"""Compares the documents of a step with those of its inputs, id by id, in every partition.

    signatures    has exactly the normalized documents
    dedup         removes only normalized documents
    rules, select see `selections.py`
    consolidate   has the normalized documents without those that select lists and those in quarantine, and names the
                  document bucket of each
    tokenize      has the same documents, each bucket in its own shards

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
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.parquet import read_shard
from datakit.storage.selection.buckets import REST
from datakit.validate.between import selections
from datakit.validate.between.final import bucket_column
from datakit.validate.between.final.encoded_parts import EncodedPart, encoded_parts
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, first_difference, ids_of, positions, read_ids
from datakit.validate.subject import Input, Subject, in_parallel

Aligned = tuple[Partition, EncodedPart, Partition | None]  # our partition, the input's, and that of the removals


@dataclass(frozen=True)
class Pairs:
    """The inputs of the comparison. removals: the step that lists the documents that leave (select or dedup), if there
    is one. select: the manifest of this step, if it is a select step. drop: the reasons for which documents leave that
    dedup marked; None if all documents in `removals` leave. quarantined: the rows that are left out of each partition
    of the input, by the partition's name in the step's quarantine.
    """

    above: Input
    removals: Input | None = None
    select: Manifest | None = None
    drop: tuple[str, ...] | None = None
    quarantined: dict[str, list[int]] | None = None


def check(step: Subject, result: Result) -> None:
    """Compare the documents of each partition with those of the step's inputs."""
    stage = step.manifest.stage
    if stage in selections.STAGES:
        return selections.check(step, result)
    inputs = step.inputs_of("consolidate" if stage == "tokenize" else "normalize") or step.inputs_of("normalize")
    if missing := next(filter(None, map(step.missing, ("normalize", "consolidate", "dedup", "select"))), ""):
        return result.skip(missing)
    if not inputs:
        return result.skip("the step has no such input")
    quarantined = _quarantined(step, result)
    removals = next(iter(step.inputs_of("select")), None)
    select, drop = removals[1] if removals else None, None
    if removals is None and stage == "consolidate":
        removals = next(iter(step.inputs_of("dedup")), None)
        drop = tuple(step.manifest.details.get("drop", ()))
    for entry, manifest in inputs:
        pairs = Pairs(entry, removals[0] if removals else None, select, drop, quarantined)
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
        parts = [EncodedPart(part, None, (), part.rows) for part in theirs]
        if step.manifest.stage == "tokenize" and len(marks) == len(theirs):
            mark_of = dict(zip((part.path for part in theirs), marks, strict=True))
            parts = list(encoded_parts(theirs, removals))
            marks = [mark_of[one.partition.path] for one in parts]
        if not len(ours) == len(parts) == len(marks):
            result.find(step.manifest_url, f"has {len(ours)} partitions of {source!r}; its inputs have {len(parts)}")
            continue
        yield from zip(ours, parts, marks, strict=True)


def _compare(step: Subject, result: Result, pairs: Pairs, aligned: Aligned) -> int:
    """Compare one partition; return the number of documents in it."""
    ours, part, marks = aligned
    theirs = part.partition
    suffix = DOCUMENTS_SUFFIX if step.manifest.stage == "tokenize" else ""
    place, other = step.place(ours) + suffix, pairs.above.url(theirs)
    marked = pairs.removals.url(marks) if pairs.removals is not None and marks is not None else None
    lists = [urls.join(pairs.removals.directory, one) for one in part.lists] if pairs.removals is not None else []
    named = bucket_column.lists_of(pairs.select, theirs) if step.manifest.stage == "consolidate" else None
    columns = {name: urls.join(pairs.removals.directory, one) for name, one in (named or {}).items() if pairs.removals}
    if not step.sound(place, other, *([marked] if marked else []), *lists, *columns.values()):
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
            keep = np.ones(len(expected), bool)
            if marked is not None:
                with result.reading(marked):
                    _leave_out(keep, expected, marked, pairs.drop, result)
            if part.bucket is not None:
                keep &= _in_bucket(part, expected, lists, result)
            file = ours.path if step.manifest.stage == "consolidate" else theirs.path
            keep[[row for row in (pairs.quarantined or {}).get(file, ()) if row < len(keep)]] = (
                step.manifest.stage == "signatures"
            )  # a quarantined document has an empty signature
            difference = first_difference(expected[keep], found)
            if difference:
                result.find(place, f"does not match {other}: it {difference}")
            elif named is not None:
                bucket_column.compare(place, found, columns, result)
            return len(found)
    return 0


def _in_bucket(part: EncodedPart, expected: Ids, lists: list[str], result: Result) -> np.ndarray:
    """Return which documents of a partition are in a document bucket, bool [N]."""
    named = np.zeros(len(expected), bool)
    for url in lists:
        with result.reading(url):
            table = read_shard(url, ["id"])
            at = positions(ids_of(table["id"]), expected) if table.num_rows and len(expected) else np.empty(0, np.int64)
            if (at < 0).any():
                result.find(url, "names a document that its input does not have")
            named[at[at >= 0]] = True
    return ~named if part.bucket == REST else named


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
