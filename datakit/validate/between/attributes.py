"""Compares the tables of an annotate step with the normalized partitions they describe: there is one table of each
annotator per partition, and its rows are documents of that partition, in the same order, each at most once.

Cost: parsing ids at a few ns per byte; no text is read. Memory: for each thread, 32 bytes per document of a partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from datakit.storage import urls
from datakit.storage.manifest import Partition, table_path
from datakit.validate.finding import Result
from datakit.validate.id_lists import positions, read_ids
from datakit.validate.subject import Input, Subject, in_parallel


def check(step: Subject, result: Result) -> None:
    """Compare every table with the partition of its documents."""
    if missing := step.missing("normalize"):
        return result.skip(missing)
    for entry, _ in step.inputs_of("normalize"):
        for rows in in_parallel(partial(_compare, step, entry, result), list(_pairs(step, entry, result))):
            result.count("row", rows)
    return None


def _pairs(step: Subject, above: Input, result: Result) -> Iterator[tuple[Partition, Partition]]:
    """Yield each table with the partition of its documents; report tables that are missing or that belong to none."""
    assert above.manifest is not None
    tables = {part.path: part for part in step.manifest.partitions}
    for part in above.manifest.partitions:
        for name in step.manifest.details.get("tables", ()):
            path = table_path(part.source, name, urls.name(part.path))
            if path in tables:
                yield tables.pop(path), part
            else:
                result.find(step.manifest_url, f"lists no table {path}; the step was made from {part.path}")
    for path in sorted(tables):
        result.find(step.manifest_url, f"lists {path}, which belongs to no partition of the input")


def _compare(step: Subject, above: Input, result: Result, pair: tuple[Partition, Partition]) -> int:
    """Compare one table; return the number of its rows."""
    place, other = step.place(pair[0]), above.url(pair[1])
    if not step.sound(place, other):
        result.skip("the rows of damaged files are not compared")
        return 0
    with result.reading(place):
        found = read_ids(place)
        with result.reading(other):
            expected = read_ids(other)
            rows = positions(found, expected) if len(expected) else np.full(len(found), -1)
            _report(place, other, rows, result)
            return len(found)
    return 0


def _report(place: str, other: str, rows: np.ndarray, result: Result) -> None:
    """Report the first row that is wrong. rows: the row of each id in the partition, or -1: int64 [rows of the
    table].
    """
    strange, disordered = np.flatnonzero(rows < 0), np.flatnonzero(rows[1:] <= rows[:-1])
    if len(strange):
        result.find(place, f"has a row for a document that is not in {other}: row {strange[0]}")
    elif len(disordered):
        result.find(place, f"has rows in another order than {other}, or twice: row {disordered[0] + 1}")
