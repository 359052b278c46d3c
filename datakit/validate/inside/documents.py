"""Reads every document: its id must be the xxh3-128 of its text, ids must ascend strictly within the partition's range,
and the row count, the first and last id, and the number of bytes of text must be those in the manifest.

These values are computed from the rows, not taken from the files' footers. A document with an `edited_id` was edited
after its id was assigned; its `edited_id`, not its id, is the hash of its text.

Cost: decoding the text (0.5 to 1 GB per CPU-second), and hashing it (5 GB per CPU-second, and 0.3 us per document).
Memory: one row group per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from datakit.storage import urls
from datakit.storage.ids import ids_from_digests, strictly_ascending, top_bits
from datakit.storage.manifest import Partition
from datakit.storage.parquet import open_shard, read_group
from datakit.text.string_buffers import string_buffers
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, ids_of
from datakit.validate.inside.manifest_claims import NUMBERED
from datakit.validate.subject import Subject, Texts, in_parallel

EDITED = "edited_id"
TEXT_COLUMNS = ("id", "text", "source", EDITED)
Claims = list[tuple[str, object, object]]  # (what is stated, the manifest's value, the value that was found)


@dataclass
class Scan:
    """The counts and the first and last id of the rows of a partition read so far, and a problem found in them."""

    partition: Partition
    rows: int = 0
    text_bytes: int = 0
    ends: list[str] = field(default_factory=list)
    problem: str = ""

    def claims(self, with_text: bool) -> Claims:
        """Return the manifest's statements about the partition, each with what was found."""
        part = self.partition
        first, last = (self.ends[0], self.ends[-1]) if self.ends else (None, None)
        found: Claims = [("rows", part.rows, self.rows), ("first id", part.first_id, first)]
        found.append(("last id", part.last_id, last))
        return found + ([("bytes of text", part.text_bytes, self.text_bytes)] if with_text else [])


def check_ids(step: Subject, result: Result) -> None:
    """Check the ids of every partition of a stage whose files hold no texts."""
    _check(step, result, _scan_ids, with_text=False)


def check_texts(step: Subject, result: Result) -> None:
    """Check the ids and texts of every partition."""
    _check(step, result, partial(_scan_texts, step.texts), with_text=True)


def _check(step: Subject, result: Result, scan: Callable[[str, Scan], None], *, with_text: bool) -> None:
    parts = [part for part in step.manifest.partitions if step.sound(step.place(part))]
    if len(parts) < len(step.manifest.partitions):
        result.skip("damaged partitions are not read")
    for found in in_parallel(partial(_scanned, step, result, scan), parts):
        result.count("document", found.rows)
        part, place = found.partition, step.place(found.partition)
        if found.problem:
            result.find(place, found.problem)
            continue
        for what, said, is_now in found.claims(with_text):
            if said != is_now:
                result.find(step.manifest_url, f"says that {part.path} has {said} as its {what}; it has {is_now}")


def _scanned(step: Subject, result: Result, scan: Callable[[str, Scan], None], part: Partition) -> Scan:
    found = Scan(part)
    before = len(result.findings)
    with result.reading(url := step.place(part)):
        scan(url, found)
    if len(result.findings) > before and not found.problem:
        found.problem = "was not read to its end"
    return found


def _scan_ids(url: str, scan: Scan) -> None:
    _scan_groups(url, ("id",), scan, lambda table, ids, row, place: "")


def _scan_texts(texts: Texts | None, url: str, scan: Scan) -> None:
    def problem(table: pa.Table, ids: Ids, row: int, place: tuple[int, int]) -> str:
        if texts is not None:
            texts.add(url, place, ids, table)
        return _text_problem(table, ids, row, scan)

    _scan_groups(url, TEXT_COLUMNS, scan, problem)
    if texts is not None and not scan.problem:
        texts.finish(url)


def _scan_groups(url: str, names: tuple[str, ...], scan: Scan, problem: Callable[..., str]) -> None:
    """Add the row groups of a partition to `scan`, up to and including the first one with a problem."""
    with open_shard(url) as shard:
        columns = [name for name in names if name in shard.schema_arrow.names]
        count = shard.metadata.num_row_groups
        for group in range(count):
            table = read_group(shard, group, url, columns)
            if table.num_rows:
                ids, row = ids_of(table["id"]), scan.rows
                _add_ids(ids, scan)
                scan.problem = scan.problem or problem(table, ids, row, (group, count))
            if scan.problem:
                return
            del table  # before the next row group is decoded


def _add_ids(ids: Ids, scan: Scan) -> None:
    match = NUMBERED.fullmatch(urls.name(scan.partition.path))
    index, count = (int(match[1]), int(match[2])) if match else (0, 1)
    if not strictly_ascending(ids.high, ids.low) or (scan.ends and ids.text(0) <= scan.ends[-1]):
        scan.problem = f"has ids that do not ascend strictly, in or after row {scan.rows}"
    outside = top_bits(ids.high, count) != index
    if outside.any():
        name = ids.text(int(np.argmax(outside)))
        scan.problem = f"holds the document {name}, which belongs in another partition"
    scan.rows += len(ids)
    scan.ends = [scan.ends[0] if scan.ends else ids.text(0), ids.text(len(ids) - 1)]


def _text_problem(table: pa.Table, ids: Ids, row: int, scan: Scan) -> str:
    """Return the first problem with a row group's texts, hashes and sources as a phrase, or "". The bytes of text are
    added to `scan`.
    """
    if table["text"].null_count:
        return f"holds a document without text, in or after row {row}"
    data, offsets = string_buffers(table["text"])
    scan.text_bytes += int(offsets[-1] - offsets[0])
    high, low = _hashes(data, offsets)
    wrong = (high != ids.high) | (low != ids.low)
    if wrong.any() and EDITED in table.column_names:
        edited = table[EDITED].combine_chunks()
        rows = np.flatnonzero(wrong & edited.is_valid().to_numpy(zero_copy_only=False))
        noted = ids_of(edited.take(pa.array(rows)))
        wrong[rows] = (noted.high != high[rows]) | (noted.low != low[rows])
    if wrong.any():
        return f"holds the document {ids.text(int(np.argmax(wrong)))} with a text that has another hash"
    other = pc.call_function("not_equal", [table["source"], pa.scalar(scan.partition.source)])
    if table["source"].null_count or pc.call_function("any", [other]).as_py():
        return f"holds a document of a source other than {scan.partition.source!r}, in or after row {row}"
    return ""


def _hashes(data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the xxh3-128 of each text as (high, low): uint64 [texts] each."""
    view, ends = data.data, offsets.tolist()
    digests = map(xxhash.xxh3_128_digest, map(view.__getitem__, map(slice, ends[:-1], ends[1:])))
    return ids_from_digests(b"".join(digests))
