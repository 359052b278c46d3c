"""Reads tar archives of texts in the form of WebDataset: each sample becomes one record.

The column `id` holds the sample's key. The column `text` holds the member `.txt`, if there is one. The members of the
object in `.json` become columns of their own names; if one is named `id`, or `text` beside a `.txt`, it is named
`json_id` or `json_text`. The JSON is read by the rules of JSON Lines (json_rows.py), but may span lines. Members with
other extensions are counted (`normalize/members_ignored`). A sample is quarantined as a whole, under the offset of its
first member's header in the uncompressed archive.

Memory: one chunk of about 4 MiB, or one sample. Cost: about 40 microseconds per sample of two members, and 1.5 ms per
MB of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from datakit.normalize.config import Config
from datakit.normalize.formats import TAR
from datakit.normalize.readers.archives.samples import Sample, is_kept, samples_of
from datakit.normalize.readers.archives.tar_members import TarReader
from datakit.normalize.readers.base import Chunk, Chunks, ReadContext, chunked, longest_record
from datakit.normalize.readers.json import valid_utf8, with_id_as_string
from datakit.normalize.readers.json_arrays.one_line import on_one_line
from datakit.normalize.readers.json_lines import find_lines
from datakit.normalize.readers.json_rows import Expected, parse_lines, table_of
from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK
from datakit.normalize.readers.streams import DamagedError, decompressed


def read_webdataset(context: ReadContext, path: str) -> Chunks:
    """Yield the samples of an archive. Raises UnreadableError or ColumnError."""
    counts, limit = context.counts, longest_record(context.config)
    reader = TarReader(is_kept, limit)
    reported: list[str] = []

    def samples() -> Iterator[Sample]:
        parts = decompressed(file, path, streams=context.streams, allowed=TAR)
        try:
            yield from samples_of(reader.members(parts), limit, counts.counters)
            reader.check_end()
        except DamagedError as error:
            reported.append(str(error))

    with context.inputs.open(path) as file:
        for batch in chunked(samples(), lambda sample: sample.size):
            yield from _chunk(context, path, batch)
        for reason in reported:
            counts.unreadable(path, reader.position, reason)


def _chunk(context: ReadContext, path: str, batch: list[Sample]) -> Chunks:
    positions, counts = np.array([sample.offset for sample in batch], np.int64), context.counts
    kept = context.start_batch(path, positions, lambda row: _records([batch[row]], context.config))
    used = [sample for row, sample in enumerate(batch) if kept is None or kept[row]]
    records, problems, invalid = _records(used, context.config)
    for row in sorted(problems):
        counts.unreadable(path, used[row].offset, problems[row])
    counts.counters["normalize/invalid_utf8"] += invalid
    if records:
        counts.add_read(len(records))
        table = table_of(list(records.values()), path, context.choice.reads, _conflicts(context.config))
        table = with_id_as_string(table, context.config)
        places = np.array([used[row].offset for row in records], np.int64)
        yield Chunk(path, table, places, sum(sample.size for sample in batch))


def _conflicts(config: Config) -> dict[str, str]:
    """Return the policies of columns. A transform gets the values as they are."""
    return {} if config.transform is not None else config.conflicts


Records = dict[int, dict[str, Any]]  # the record of each usable sample, by the sample's index


def _records(samples: list[Sample], config: Config) -> tuple[Records, dict[int, str], int]:
    """Return the records, why the other samples cannot be used, and how many values had invalid UTF-8."""
    problems = {row: sample.problem for row, sample in enumerate(samples) if sample.problem}
    objects, invalid = _objects(samples, problems, config)
    records: Records = {}
    for row, sample in enumerate(samples):
        if row in problems:
            continue
        own: dict[str, Any] = {"id": _text(sample.key.encode("utf-8", "surrogateescape"))[0]}
        if "txt" in sample.members:
            own["text"], changed = _text(sample.members["txt"])
            invalid += changed
        names = {name: f"json_{name}" if name in own else name for name in objects.get(row, {})}
        if len(set(names.values())) < len(names):
            problems[row] = "its .json has both a member and that member's name after `json_`"
            continue
        records[row] = own | {names[name]: value for name, value in objects.get(row, {}).items()}
    return records, problems, invalid


def _objects(samples: list[Sample], problems: dict[int, str], config: Config) -> tuple[Records, int]:
    """Return the objects in the members `.json`, and how many of them had invalid UTF-8. Adds to `problems`."""
    rows, lines = [], []
    for row, sample in enumerate(samples):
        if row not in problems and "json" in sample.members:
            line = on_one_line(sample.members["json"].removeprefix(BYTE_ORDER_MARK))
            if line is None:
                problems[row] = "its .json is not one JSON value"
                continue
            rows.append(row)
            lines.append(line)
    data, invalid = valid_utf8(b"\n".join(lines))
    text = config.text_column if config.transform is None and config.text_form is None else None
    expected = Expected(text, None, config.id if config.id != "id" else None)

    def bad(number: int, reason: str) -> None:
        problems[rows[number]] = f"its .json is unusable: {reason}"

    found, numbers, surrogates = parse_lines(data, find_lines(data), expected, bad)
    return {rows[number]: record for number, record in zip(numbers, found, strict=True)}, invalid + surrogates


def _text(data: bytes) -> tuple[str, int]:
    """Return a text with invalid UTF-8 replaced, and whether any was."""
    try:
        return data.removeprefix(BYTE_ORDER_MARK).decode(), 0
    except UnicodeDecodeError:
        return data.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace"), 1
