"""Applies edits to texts: replaces or removes stretches of bytes. Every stage that reads edited texts uses
`EditedTexts`, so all see the same texts.

Edits are verified before they are applied: a row must name the document in that row of the partition; its stretches
must be in order, disjoint, inside the text and between characters; and the edited text must have the hash that is
recorded as `edited_id`. So damaged edits, or those of another partition, never change a text.

A column of texts is cut into pieces, which are views of its buffer, and Arrow replaces the pieces that are edited. So
the texts are copied once, and no Python object is made per stretch. Cost: copying the texts of each row group that has
edits (16 MiB, about 5 ms), and hashing the edited ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from datakit.errors import CorruptError
from datakit.storage.ids import ids_from_digests, ids_to_arrow
from datakit.storage.selection.edits import SCHEMA
from datakit.storage.selection.listed_rows import ADVICE, ListedRows, int64_array
from datakit.text.string_buffers import string_buffers

TEXT, EDITED_ID = "text", "edited_id"


class Stretches(NamedTuple):
    """S stretches of the texts of a column, in order. rows: the index of each one's text; starts, stops: its bytes in
    this text: int64 [S] each. replacements: strings; null if the stretch is cut.
    """

    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    replacements: pa.Array


def first_misplaced(texts: pa.Array, places: Stretches) -> int:
    """Return the index of the first stretch that is empty, outside its text, or divides a character; -1 if none is."""
    data, offsets = string_buffers(texts)
    sizes = np.diff(offsets)[places.rows]
    wrong = (places.starts < 0) | (places.starts >= places.stops) | (places.stops > sizes)
    origins = offsets[places.rows]
    for ends in (places.starts, places.stops):
        inside = ~wrong & (ends < sizes)
        wrong[inside] = data[(origins + ends)[inside]] & 0xC0 == 0x80
    return int(np.argmax(wrong)) if wrong.any() else -1


def edited(texts: pa.Array, places: Stretches) -> pa.Array:
    """Return N texts as large strings, with the stretches replaced. The stretches must be disjoint and well placed."""
    data, offsets = string_buffers(texts)
    count, size = len(places.rows), len(offsets) - 1
    before = np.searchsorted(places.rows, np.arange(size))  # the number of stretches in earlier texts
    firsts = np.arange(size) + 2 * before  # the index of each text's first piece
    pieces = places.rows + 2 * np.arange(count) + 1  # the index of the piece that is each stretch
    bounds = np.empty(size + 2 * count + 1, np.int64)
    bounds[firsts], bounds[-1] = offsets[:-1], offsets[-1]
    bounds[pieces], bounds[pieces + 1] = offsets[places.rows] + places.starts, offsets[places.rows] + places.stops
    found = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    replaced = _replaced(found, pieces, places.replacements)
    _, ends, contents = replaced.buffers()
    positions = np.frombuffer(ends, np.int64)[replaced.offset : replaced.offset + len(replaced) + 1]
    starts = pa.py_buffer(np.append(positions[firsts], positions[-1]))
    return pa.Array.from_buffers(pa.large_string(), size, [None, starts, contents])


def _replaced(pieces: pa.Array, chosen: np.ndarray, replacements: pa.Array) -> pa.Array:
    """Return the pieces with those at the indices `chosen` replaced; a null stands for an empty replacement."""
    mask = np.zeros(len(pieces), bool)
    mask[chosen] = True
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    values = replacements.cast(pa.large_string()).cast(pa.large_binary()).fill_null(b"")
    chosen_pieces = pa.BooleanArray.from_buffers(pa.bool_(), len(mask), [None, bits])
    return pc.call_function("replace_with_mask", [pieces, chosen_pieces, values])


def text_ids(texts: pa.Array) -> pa.Array:
    """Return the ids of texts: the xxh3-128 of each text's bytes, as 32 hex digits."""
    data, offsets = string_buffers(texts)
    view, ends = data.data, offsets.tolist()
    digests = map(xxhash.xxh3_128_digest, map(view.__getitem__, map(slice, ends[:-1], ends[1:])))
    return ids_to_arrow(*ids_from_digests(b"".join(digests)))


class EditedTexts:
    """The edits of one partition, applied to its rows in order.

    url: the list of the edits (see `storage/selection/edits.py`); None if there are none. dataset: the URL of the
    partition, for messages.
    """

    def __init__(self, url: str | None, dataset: str) -> None:
        self._url, self._dataset = url, dataset
        self._listed = ListedRows(url, dataset, SCHEMA)

    def apply(self, table: pa.Table) -> pa.Table:
        """Take the partition's next rows, all of them, with the columns `id` and `text`. Return them with the edited
        texts and, if they have the column `edited_id`, with the ids of the edited texts. Raises CorruptError if the
        edits do not belong to these rows.
        """
        positions, listed = self._listed.take(table["id"])
        if not len(positions):
            return table
        texts, ids = self._edited(_array(table[TEXT]), positions, listed)
        table = table.set_column(table.column_names.index(TEXT), table.schema.field(TEXT), texts)
        if EDITED_ID not in table.column_names:
            return table
        column = _scattered(ids, positions, table.num_rows)
        return table.set_column(table.column_names.index(EDITED_ID), table.schema.field(EDITED_ID), column)

    def skip_to(self, row: int) -> None:
        """Continue at this row of the partition."""
        self._listed.skip_to(row)

    def expect_end(self) -> None:
        """Raise CorruptError if edits are listed for rows beyond the end of the partition."""
        self._listed.expect_end()

    def _edited(self, texts: pa.Array, positions: np.ndarray, listed: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Return all texts, those at `positions` edited, and the ids of the edited ones."""
        if texts.null_count:
            raise CorruptError(f"{self._dataset}: a document has no text; {ADVICE}")
        places = stretches_of(_array(listed["stretches"]), positions)
        misplaced = first_misplaced(texts, places)
        if misplaced >= 0:
            self._refuse(
                int(places.rows[misplaced]), texts, "a stretch is empty, outside the text or divides a character"
            )
        overlap = (places.rows[1:] == places.rows[:-1]) & (places.starts[1:] < places.stops[:-1])
        if overlap.any():
            self._refuse(int(places.rows[int(np.argmax(overlap))]), texts, "stretches overlap or are out of order")
        result, ids = edited(texts, places), _array(listed[EDITED_ID])
        computed = text_ids(result.take(int64_array(positions)))
        if not computed.equals(ids):
            wrong = next(row for row in range(len(ids)) if computed[row] != ids[row])
            self._refuse(int(positions[wrong]), texts, "the edited text does not have the recorded edited_id")
        return result, ids

    def _refuse(self, position: int, texts: pa.Array, problem: str) -> None:
        row = self._listed.next_row - len(texts) + position
        raise CorruptError(f"{self._url} does not fit row {row} of {self._dataset}: {problem}; {ADVICE}")


def stretches_of(lists: pa.Array, positions: np.ndarray) -> Stretches:
    """Return the stretches of documents at these positions of a column. lists: one list per document."""
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False)
    starts, stops, replacements, _ = lists.flatten().flatten()
    return Stretches(np.repeat(positions, sizes), _int64(starts), _int64(stops), replacements)


def _int64(column: pa.Array) -> np.ndarray:
    """Return a column of uint64 without nulls as int64 [N]; numbers from 2^63 on become negative."""
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _scattered(values: pa.Array, positions: np.ndarray, size: int) -> pa.Array:
    """Return a column of `size` rows that holds the values at these positions, and nulls elsewhere."""
    indices, missing = np.zeros(size, np.int64), np.ones(size, bool)
    indices[positions], missing[positions] = np.arange(len(positions)), False
    return values.take(pa.array(indices, pa.int64(), mask=missing))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
