"""Reads one file with the readers of normalize, for their tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from datakit.engine.task import Tolerance
from datakit.normalize.config import Config
from datakit.normalize.readers import line_chunks
from datakit.normalize.readers.base import Chunk, ReadContext
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import cut_slices, read_slice
from datakit.normalize.record_counts import RecordCounts

RECORDS = [{"id": f"r{n}", "text": f'text {n}, "quoted"\nsecond line' * (n % 5 + 1)} for n in range(200)]


def lines(records: list[dict[str, Any]] = RECORDS) -> bytes:
    """Records as JSON Lines."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(directory: Path, name: str, **config: Any) -> tuple[list[Chunk], RecordCounts]:
    """Read all chunks of a file."""
    counts = RecordCounts(Tolerance(1000))
    context = ReadContext(Inputs(str(directory)), Config(**config), counts)
    slices = cut_slices(Inputs(str(directory)), [(name, (directory / name).stat().st_size)], context.config)
    return [chunk for ranges in slices for chunk in read_slice(context, ranges)], counts


def read_json(
    directory: Path, data: bytes, chunk_bytes: int = 1 << 20, **config: Any
) -> tuple[list[Chunk], RecordCounts]:
    """Read all chunks of a JSON Lines file with this content."""
    (directory / "in.jsonl").write_bytes(data)
    with patch.object(line_chunks, "CHUNK_BYTES", chunk_bytes):
        return read(directory, "in.jsonl", **config)


def rows(chunks: list[Chunk]) -> list[dict[str, Any]]:
    """The records of some chunks."""
    return [row for chunk in chunks for row in chunk.table.to_pylist()]


def positions(chunks: list[Chunk]) -> list[int]:
    """The positions of all records in some chunks."""
    return [int(position) for chunk in chunks for position in chunk.positions]


def reasons(counts: RecordCounts) -> list[tuple[int, str]]:
    """(position, reason) of each quarantined record."""
    return [(record.position, record.reason) for record in counts.quarantined]
