"""Reads the documents that stay in a normalized partition, or in a range of it, with their edited texts, in batches of
at most 2 MiB of text (a longer document forms a batch by itself), and refuses documents without text. The next batch
reuses the memory of a batch of this size; with batches of 8 MiB, the tokenize tasks had 36 % more page faults and took
48 % more system time (measured). Documents become Python strings only for encoders that need them; datakit's own reads
the bytes. A batch is a slice of a row group, which is copied only if some of its documents leave or are edited. Each
batch is released before the next one is made. The tokens of a text do not depend on the batch that contains the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.cache.lengths import stretches
from datakit.errors import CorruptError
from datakit.storage.parquet import open_shard, read_group
from datakit.storage.selection.buckets import MemberRows, Members
from datakit.storage.selection.leaving_rows import LeavingRows, both, only
from datakit.text.edited_texts import EditedTexts
from datakit.text.string_buffers import string_buffers
from datakit.tokenize.document_ranges import WHOLE, Part

BATCH_BYTES = 2 << 20


@dataclass(frozen=True)
class TextBatch:
    """A batch of N documents. data: uint8, the UTF-8 bytes of their texts and possibly of others. offsets: int64 [N +
    1], the index in `data` at which each text starts, and the end of the last text. rows: int64 [N], the rows of the
    documents in the file. row, position: how many documents that stay, and how many bytes of their text, precede this
    batch in the range. columns: the other columns that were requested.
    """

    ids: pa.Array
    text: pa.Array
    data: np.ndarray
    offsets: np.ndarray
    rows: np.ndarray
    row: int
    position: int
    columns: tuple[pa.Array, ...] = ()

    @property
    def text_bytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    def strings(self) -> list[str]:
        return self.text.to_pylist()


def text_batches(
    url: str,
    columns: Sequence[str] = (),
    leaving: str | None = None,
    part: Part = WHOLE,
    edits: str | None = None,
    *,
    members: Members | None = None,
) -> Iterator[TextBatch]:
    """Yield the documents in a range of a Parquet file, in order, in batches of up to BATCH_BYTES of text; a longer
    document forms a batch by itself. columns: the names of columns to read in addition to `id` and `text`. leaving: the
    URL of the list of the rows that leave, which are not yielded; None if all stay. part: the range. edits: the URL of
    the list of edits, which are applied to the texts; None if there are none. members: the documents of a bucket, to
    yield only these; None for all that stay.
    """
    row = position = 0
    for table, rows in _staying(url, ["id", "text", *columns], (leaving, edits, members), part):
        ids, text = _array(table.column("id")), _array(table.column("text"))
        if text.null_count:
            raise CorruptError(
                f"{url}: a document has no text; remove the directory of the step that wrote this file and run again"
            )
        data, offsets = string_buffers(text)
        others = [_array(table.column(name)) for name in columns]
        for start, stop in stretches(offsets, BATCH_BYTES):
            size, ends = stop - start, offsets[start : stop + 1]
            more = tuple(other.slice(start, size) for other in others)
            yield TextBatch(
                ids.slice(start, size), text.slice(start, size), data, ends, rows[start:stop], row, position, more
            )
            row, position = row + size, position + int(ends[-1] - ends[0])


def _array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. `combine_chunks` would copy a column of one chunk, too."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _staying(
    url: str, columns: list[str], selection: tuple[str | None, str | None, Members | None], part: Part
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """For each row group in the range with documents to yield, yield these documents, with their edited texts, and
    their rows in the file. selection: the URLs of the lists of the rows that leave and of the edits, and the documents
    of the bucket.
    """
    leaving, edits, members = (
        LeavingRows(selection[0], url),
        EditedTexts(selection[1], url),
        MemberRows(selection[2], url),
    )
    with open_shard(url) as shard:
        sizes = [shard.metadata.row_group(group).num_rows for group in range(shard.metadata.num_row_groups)]
        groups = part.row_groups(sizes)
        first = sum(sizes[: groups.start])
        leaving.skip_to(first)
        edits.skip_to(first)
        members.skip_to(first)
        for group in groups:
            table = edits.apply(read_group(shard, group, url, columns))
            rows = np.arange(first, first + table.num_rows)
            first += table.num_rows
            staying = both(leaving.staying(table["id"]), members.inside(table["id"]))
            if staying is not None:
                table, rows = only(table, staying), rows[staying]
            if len(rows):
                yield table, rows
    if part.last:
        leaving.expect_end()
        edits.expect_end()
        members.expect_end()
