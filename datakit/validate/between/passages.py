"""Compares the tables of a passages step with the normalized partitions they describe: rows belong to documents that
neither rules nor dedup remove, and the spans of each search ascend, do not overlap, and add up to the manifest's
counts. Spans of substrings are also as long as a substring, and do not touch.

Cost: parsing ids at a few ns per byte, and decoding the spans; no text is read. Memory: for each thread, 32 bytes per
document of a partition, and a row group of spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.passages.config import SUBSTRING
from datakit.storage.manifest import Partition
from datakit.storage.parquet import iterate_shard, read_shard
from datakit.storage.selection.leaving_rows import RULE
from datakit.validate.between.edit_counts import Equation
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, ids_of, joined, read_ids
from datakit.validate.subject import Subject, in_parallel

SPAN_COUNTS = ("marked", "marked_bytes", "documents")  # the counts that a table of spans determines
EDGES = 6  # the most bytes of a substring that belong to characters which are not inside as a whole
Aligned = tuple[Partition, str, tuple[str, ...]]  # the table, the URL of its partition, those of the marks for it
Counts = dict[str, np.ndarray]  # search -> the values of SPAN_COUNTS, int64 [3]


def check(step: Subject, result: Result) -> None:
    """Compare every table with the partition of its documents, and all of them with the manifest's counts."""
    if missing := next(filter(None, map(step.missing, ("normalize", "rules", "dedup"))), ""):
        return result.skip(missing)
    totals: dict[str, Counts] = {}
    aligned = list(_aligned(step, result))
    for (part, _, _), counts in zip(aligned, in_parallel(partial(_compare, step, result), aligned), strict=True):
        if counts is None:
            return None
        before = totals.setdefault(part.source, {})
        totals[part.source] = {name: before.get(name, 0) + found for name, found in counts.items()}
        result.count("document", part.rows)
    for source, counts in totals.items():
        stated = step.manifest.details["sources"][source]["searches"]
        for name, found in counts.items():
            for kind, value in zip(SPAN_COUNTS, found.tolist(), strict=True):
                if stated[name][kind] != value:
                    result.find(
                        step.manifest_url,
                        f"says {stated[name][kind]} for {kind} of search {name!r} in {source!r}; it is {value}",
                    )
    return None


def _aligned(step: Subject, result: Result) -> Iterator[Aligned]:
    """Yield the tables with what belongs to them; report sources whose numbers of partitions differ."""
    deciding = [*step.inputs_of("rules"), *step.inputs_of("dedup")]
    for entry, above in step.inputs_of("normalize"):
        for source, theirs in above.by_source.items():
            ours = step.manifest.partitions_of(source)
            marks = [[one.url(part) for part in manifest.partitions_of(source)] for one, manifest in deciding]
            if any(len(found) != len(theirs) for found in (ours, *marks)):
                result.find(step.manifest_url, f"has another number of partitions of {source!r} than its inputs")
                continue
            for number, part in enumerate(ours):
                yield part, entry.url(theirs[number]), tuple(found[number] for found in marks)


def _compare(step: Subject, result: Result, aligned: Aligned) -> Counts | None:
    """Compare one table; return its counts, or None if they are unknown."""
    part, dataset, marks = aligned
    place = step.place(part)
    if not step.sound(place, dataset, *marks):
        return result.skip("damaged files are not compared")
    with result.reading(place):
        found = read_ids(place)
        with result.reading(dataset):
            strange = np.flatnonzero(~contained(found, read_ids(dataset)))
            if len(strange):
                result.find(place, f"has a row for {found.text(int(strange[0]))}, which is not in {dataset}")
        for url in marks:
            with result.reading(url):
                leaving = np.flatnonzero(contained(found, _leaving(url, frozenset(step.manifest.parameters["drop"]))))
                if len(leaving):
                    result.find(place, f"has a row for {found.text(int(leaving[0]))}, which {url} removes")
        return _spans(step, place, result)
    return None


def _leaving(url: str, drop: frozenset[str]) -> Ids:
    """Return the documents that a list marks for a reason in `drop` or because of a rule."""
    table = read_shard(url, ["id", "reason"])
    reasons = table["reason"].to_pylist()
    leaves = np.array([reason in drop or reason.startswith(RULE) for reason in reasons], bool)
    return ids_of(table["id"])[leaves] if len(leaves) else joined([])


def _spans(step: Subject, place: str, result: Result) -> Counts:
    """Check the spans of a table, and return their counts."""
    searches = step.manifest.parameters["searches"]
    counts = {name: np.zeros(len(SPAN_COUNTS), np.int64) for name in searches}
    for table in iterate_shard(place, list(searches)):
        for name, settings in searches.items():
            column = table[name].combine_chunks()
            sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            starts, stops, kinds = column.flatten().flatten()
            begin, end = (one.to_numpy(zero_copy_only=False).astype(np.int64) for one in (starts, stops))
            documents = np.repeat(np.arange(len(sizes)), sizes)
            together = documents[1:] == documents[:-1]
            if (end <= begin).any() or (together & (begin[1:] < end[:-1])).any():
                result.find(place, f"has spans of search {name!r} that are empty, overlap or do not ascend")
            if settings["unit"] == SUBSTRING:
                if (end - begin < settings["min_bytes"] - EDGES).any():
                    result.find(place, f"has spans of search {name!r} that are shorter than its substrings")
                if (together & (begin[1:] == end[:-1])).any():
                    result.find(place, f"has spans of search {name!r} that touch, so they should be one")
            strange = pc.call_function("not_equal", [kinds, pa.scalar(settings["unit"])])
            if pc.call_function("any", [strange]).as_py():  # null if there are no spans
                result.find(place, f"has spans of search {name!r} that are of another kind than its unit")
            counts[name] += np.array([len(begin), int((end - begin).sum()), int((sizes > 0).sum())])
    return counts


def equations(step: Subject, result: Result) -> Iterator[Equation]:
    """Yield the equations that a passages step must satisfy."""
    manifest, counters, details = step.manifest, step.manifest.counters, step.manifest.details["sources"]
    for name in ("documents", "left_out"):
        total = sum(entry[name] for entry in details.values())
        yield f"passages/{name}", counters[f"passages/{name}"], "the sum over the sources", total
    for name in manifest.parameters["searches"]:
        for kind in ("found", "marked", "marked_bytes"):
            total = sum(entry["searches"][name][kind] for entry in details.values())
            yield f"passages/{kind}/{name}", counters[f"passages/{kind}/{name}"], "the sum over the sources", total
    for entry, above in step.inputs_of("normalize"):
        for source in above.by_source:
            read = details[source]["documents"] + details[source]["left_out"]
            yield f"the documents read of {source!r}", read, f"those in {entry.directory}", above.totals.rows
    if step.missing("rules") or step.missing("dedup"):
        return
    for source, entry in details.items():
        removed = sum(rules.details["sources"][source]["leaving"] for _, rules in step.inputs_of("rules"))
        for _, dedup in step.inputs_of("dedup"):
            removed += sum(dedup.details["sources"][source][reason] for reason in manifest.parameters["drop"])
        yield f"the documents of {source!r} left out", entry["left_out"], "those that rules and dedup remove", removed
