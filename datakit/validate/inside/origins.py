"""Compares the lists beside a normalize step's documents with the documents: `origins/`, which names the record behind
each document and each duplicate, and `duplicates/`, which lists the exact duplicates.

In a partition's origins, the kept records are the documents, and the others are the listed duplicates. Each duplicate
directly follows a record with the same id. The number of origins that name a file, over all partitions, is the file's
number of documents in `origins/files.parquet`.

Cost: parsing the ids twice. Memory: 40 bytes per record of a partition, and 8 bytes per file of the source.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa

from datakit.normalize.origins import duplicates_path, origins_path
from datakit.storage import urls
from datakit.storage.manifest import UNSEALED, Partition
from datakit.storage.parquet import read_shard
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, first_difference, ids_of, read_ids
from datakit.validate.subject import Subject, in_parallel

PerFile = Counter[int]


def check(step: Subject, result: Result) -> None:
    """Compare the lists of each partition with its documents, and the sums with the list of files."""
    if step.manifest.format == UNSEALED:
        return result.skip("steps of format 1 list no origins")
    counts, whole = PerFile(), True
    for found in in_parallel(partial(_compare, step, result), step.manifest.partitions):
        whole = whole and found is not None
        counts.update(found or {})
    result.count("record", counts.total())
    if whole:
        _check_files(step, counts, result)
    return None


def _compare(step: Subject, result: Result, part: Partition) -> PerFile | None:
    """Compare the lists of a partition. Return the number of its records from each raw file, or None if the lists
    differ or cannot be compared.
    """
    name, listed = urls.name(part.path), {file.path for file in step.manifest.files}
    origins, duplicates = step.url(origins_path(name)), step.url(duplicates_path(name))
    has_duplicates = duplicates_path(name) in listed
    if origins_path(name) not in listed:
        result.find(step.manifest_url, f"lists no {origins_path(name)}")
        return None
    if not step.sound(step.place(part), origins, *([duplicates] if has_duplicates else [])):
        result.skip("the lists of damaged partitions are not compared")
        return None
    before = len(result.findings)
    with result.reading(origins):
        table = read_shard(origins, ["id", "file", "kept"])
        ids, kept = ids_of(table["id"]), table["kept"].to_numpy()
        with result.reading(step.place(part)):
            _report(result, origins, first_difference(read_ids(step.place(part)), ids[kept]), "kept records")
        rest = Ids(np.empty(0, np.uint64), np.empty(0, np.uint64))
        with result.reading(duplicates):
            rest = read_ids(duplicates) if has_duplicates else rest
            _report(result, duplicates if has_duplicates else origins, first_difference(ids[~kept], rest), "duplicates")
        _check_order(ids, kept, origins, result)
        return _per_file(table["file"].combine_chunks()) if len(result.findings) == before else None
    return None


def _report(result: Result, url: str, difference: str, what: str) -> None:
    if difference:
        result.find(url, f"does not match the partition's {what}: it {difference}")


def _check_order(ids: Ids, kept: np.ndarray, url: str, result: Result) -> None:
    """Report a difference if a duplicate does not directly follow a record with the same id."""
    again = np.flatnonzero(~kept)
    if len(again) and (again[0] == 0 or not ids[again].equals(ids[again - 1])):
        result.find(url, "lists a duplicate that does not follow the record with the same id")


def _per_file(files: pa.Array) -> PerFile:
    ordered = np.sort(files.drop_null().to_numpy())
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else np.empty(0, np.int64)
    counts = np.diff(np.append(starts, len(ordered)))
    return PerFile(dict(zip(ordered[starts].tolist(), counts.tolist(), strict=True)))


def _check_files(step: Subject, counts: PerFile, result: Result) -> None:
    url = step.url(origins_path())
    if not step.sound(url):
        return
    with result.reading(url):
        table = read_shard(url, ["file", "path", "documents"])
        for number, path, documents in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if documents != counts[number]:
                difference = f"says that {path} holds {documents} documents; the origins name {counts[number]}"
                result.find(url, difference)
