"""Reads the bytes of undecided substrings from their documents, and hashes the substrings one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.engine.exchange.run_file import windows
from datakit.errors import CorruptError
from datakit.passages.phase_data import Search
from datakit.passages.substrings import substring_kernels
from datakit.passages.substrings.find_stretches import settings_of
from datakit.passages.substrings.rows import SUBSTRING, TEXT, sums, table_of
from datakit.passages.substrings.substring_kernels import Substrings
from datakit.text.string_buffers import string_buffers

COPIED_BYTES = 8 << 20  # bytes of texts that are copied at a time
HASHED = 1 << 18  # substrings that are hashed at a time
KINDS = (np.int64, np.int64, np.uint64, np.uint64, np.uint8)  # of Substrings


class Documents(NamedTuple):
    """Some documents. rows: their row numbers, ascending. texts: their texts."""

    rows: np.ndarray
    texts: pa.ChunkedArray


def texts_of(
    documents: Documents, undecided: pa.Table, searches: Sequence[Search]
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """Yield the bytes of undecided substrings, rows of TEXT, and the anchors. undecided: rows of UNDECIDED that belong
    to these documents, in the order of row and start. Raises CorruptError if they do not.
    """
    anchors, rows, starts, counts, search = (undecided[name].to_numpy() for name in undecided.column_names)
    starts, places = starts.astype(np.int64), np.searchsorted(documents.rows, rows.astype(np.int64))
    lengths = counts.astype(np.int64) - 1 + np.array([one.config.least for one in searches])[search]
    data, offsets = string_buffers(documents.texts)
    strange = np.append(documents.rows, -1)[places] != rows.astype(np.int64)
    strange |= starts + lengths > np.append(np.diff(offsets), -1)[places]
    if strange.any():
        raise CorruptError("the exchange holds a substring that no document has; remove this step's directory")
    for first, stop in windows(lengths, COPIED_BYTES):
        mine = slice(first, stop)
        ends = np.append(0, np.cumsum(lengths[mine]))
        copied = np.empty(ends[-1], np.uint8)
        substring_kernels.copy_parts(data, offsets[places[mine]] + starts[mine], ends, copied)
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(copied)]
        text = pa.Array.from_buffers(pa.binary(), stop - first, buffers)
        columns = [pa.array(rows[mine]), pa.array(undecided["start"].to_numpy()[mine]), text, pa.array(search[mine])]
        yield pa.Table.from_arrays(columns, schema=TEXT), anchors[mine]


def count_of(texts: pa.Table, searches: Sequence[Search]) -> np.ndarray:
    """Return the number of substrings of each search in some rows of TEXT: int64. Raises CorruptError if a row has
    none.
    """
    search = texts["search"].to_numpy()
    lengths = pc.call_function("binary_length", [texts["text"]]).to_numpy().astype(np.int64)
    counts = lengths + 1 - np.array([one.config.least for one in searches])[search]
    if (counts < 1).any():
        raise CorruptError("the exchange holds a text without a substring; remove this step's directory")
    return sums(search, counts, len(searches))


def substrings_of(texts: pa.Table, searches: Sequence[Search]) -> Iterator[pa.Table]:
    """Yield all substrings of some rows of TEXT as rows of SUBSTRING. The substrings of a search keep their order."""
    for search in searches:
        mine = texts.filter(pa.array(texts["search"].to_numpy() == search.number))
        if not mine.num_rows:
            continue
        size = search.config.least
        lengths = np.diff(string_buffers(mine["text"])[1])
        for first, stop in windows(lengths - size + 1, HASHED):
            yield _hashed(mine.slice(first, stop - first), search, int((lengths[first:stop] - size + 1).sum()))


def _hashed(texts: pa.Table, search: Search, expected: int) -> pa.Table:
    found = Substrings(*(np.empty(expected, kind) for kind in KINDS))
    settings = settings_of(search.config.least, search.number)
    count = substring_kernels.hash_substrings(*string_buffers(texts["text"]), settings, found)
    assert count == expected, "each text has as many substrings as its length says"
    rows, starts = texts["row"].to_numpy()[found.texts], texts["start"].to_numpy()[found.texts] + found.places
    return table_of(SUBSTRING, found.high, found.low, rows, starts, found.edges, np.full(count, search.number))
