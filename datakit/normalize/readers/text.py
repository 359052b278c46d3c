"""Reads files that are documents: text, Markdown, source code. One file, one document; its id is its path.

Cost: one open and one read a file; files are gathered into blocks of a few MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from datakit.errors import UnreadableError
from datakit.normalize.readers.base import Block, Blocks, Reading
from datakit.normalize.readers.json import BYTE_ORDER_MARK
from datakit.normalize.readers.line_blocks import BLOCK_BYTES
from datakit.normalize.readers.streams import DamagedError, chunks


def read_texts(reading: Reading, paths: Sequence[str]) -> Blocks:
    """The documents in `paths`, in order."""
    names: list[str] = []
    texts: list[bytes] = []
    size = 0
    for path in paths:
        text = _read(reading, path)
        if text is not None:
            names.append(path)
            texts.append(text)
            size += len(text)
        if size >= BLOCK_BYTES:
            yield _block(reading, names, texts)
            names, texts, size = [], [], 0
    if texts:
        yield _block(reading, names, texts)


def _read(reading: Reading, path: str) -> bytes | None:
    findings, limit = reading.findings, reading.config.max_document_bytes
    kept, left_out = reading.context.records(path, [0], lambda row: None)
    if kept is not None:
        findings.unreadable(path, 0, left_out[0].reason)
        return None
    with reading.inputs.open(path) as file:
        pieces, size = [], 0
        try:
            for piece in chunks(file, path):
                size += len(piece)
                if size > limit + len(BYTE_ORDER_MARK):
                    findings.unreadable(path, 0, f"longer than max_document_bytes ({limit})")
                    return None
                pieces.append(piece)
        except (DamagedError, UnreadableError) as error:
            findings.unreadable(path, 0, str(error))
            return None
    return b"".join(pieces).removeprefix(BYTE_ORDER_MARK)


def _block(reading: Reading, names: list[str], texts: list[bytes]) -> Block:
    reading.findings.met(len(names))
    text, name = reading.config.text, reading.config.id or "id"
    table = pa.table({text: pa.array(texts, pa.large_binary()), name: pa.array(names, pa.string())})
    return Block(names[0], table, np.zeros(len(names), np.int64), sum(map(len, texts)), tuple(names))
