"""Finds the copies of substrings within each document, without an exchange.

The stretches of a batch of documents are compared as those of a dataset are, but their hashes are mixed with row
numbers. The mixing keeps different numbers different, so equal stretches of two documents never have equal hashes.
Memory: a few blocks of `sorted_blocks.py`, and the undecided ranges of one of its windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from datakit.engine.exchange.sorted_blocks import SortedBlocks, sort_rows, sorted_rows
from datakit.passages.config import DOCUMENT, SUBSTRING, SUBSTRING_BYTES, SearchConfig
from datakit.passages.phase_data import Search
from datakit.passages.substrings.compare_stretches import Stretches
from datakit.passages.substrings.compare_substrings import Substrings
from datakit.passages.substrings.find_stretches import as_table, find_stretches, settings_of
from datakit.passages.substrings.repeated_keys import RepeatedKeys
from datakit.passages.substrings.rows import RANGE_ORDER, STRETCH_ORDER, SUBSTRING_ORDER
from datakit.passages.substrings.undecided_texts import Documents, substrings_of, texts_of
from datakit.text.hash_mixing import GOLDEN, mix

AT_ONCE = 32 << 20  # bytes of rows that are searched for repeated keys before they are sorted


class WithinDocuments:
    """Runs searches within documents. read, spans: the numbers of substrings and of spans so far, by search."""

    def __init__(self, searches: list[Search], scratch: Path) -> None:
        self._searches, self._scratch = searches, scratch
        self.read, self.spans = (np.zeros(len(searches), np.int64) for _ in range(2))

    def find(self, search: Search, documents: Documents) -> Iterator[pa.Table]:
        """Yield the copies in some documents that one search finds, as rows of SPAN."""
        stretches = Stretches(self._searches)
        ranges = SortedBlocks(RANGE_ORDER, self._scratch)
        for compared in stretches.compare(self._sorted(self._stretches(search, documents), STRETCH_ORDER).merged()):
            yield compared.spans
            ranges.add(sorted_rows(compared.undecided, RANGE_ORDER))
        hashed = (
            _mixed(table, "high")
            for window in ranges.merged()
            for texts, _ in texts_of(documents, window, self._searches)
            for table in substrings_of(texts, self._searches)
        )
        substrings = Substrings(self._searches)
        yield from substrings.compare(self._sorted(hashed, SUBSTRING_ORDER).merged())
        self.spans += stretches.spans + substrings.spans

    def _stretches(self, search: Search, documents: Documents) -> Iterator[pa.Table]:
        for found in find_stretches(documents.texts, settings_of(search.config.least, search.number)):
            self.read[search.number] += int((found.substrings * found.repeats).sum())
            yield _mixed(as_table(found, documents.rows, search), "anchor")

    def _sorted(self, tables: Iterator[pa.Table], keys: tuple[str, ...]) -> SortedBlocks:
        """Sort rows by keys. Of few rows, those with a unique key are left out."""
        waiting, size = list[pa.Table](), 0
        for table in tables:
            waiting.append(table)
            size += table.nbytes
            if size > AT_ONCE:
                return sort_rows(_chained(waiting, tables), keys, self._scratch)
        repeated = RepeatedKeys(sum(table.num_rows for table in waiting))
        for table in waiting:
            repeated.add(table[keys[0]])
        return sort_rows((repeated.kept(table, keys[0]) for table in waiting), keys, self._scratch)


def _chained(first: list[pa.Table], rest: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the first tables, which are forgotten one by one, and then the rest."""
    while first:
        yield first.pop(0)
    yield from rest


def _mixed(table: pa.Table, column: str) -> pa.Table:
    """Return a table of which a column is mixed with the row numbers of documents."""
    values = mix(table[column].to_numpy() ^ mix(table["row"].to_numpy() + GOLDEN))
    return table.set_column(table.column_names.index(column), column, pa.array(values))


def warm() -> None:
    """Load the kernels of all phases from numba's disk cache, or compile them."""
    search = Search("warm", 0, SearchConfig(SUBSTRING, DOCUMENT, SUBSTRING_BYTES[0], ignore=()))
    texts = pa.chunked_array([pa.array(["a" * 100 + "b" * 40 + "a" * 50], pa.large_string())])
    with TemporaryDirectory() as folder:
        list(WithinDocuments([search], Path(folder)).find(search, Documents(np.zeros(1, np.int64), texts)))
