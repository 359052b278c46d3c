"""Reads files that each hold one document (text, Markdown, source code), uses the path as the upstream id, and
quarantines files that are damaged or too long. A MediaWiki dump is quarantined too, unless the source's format is
`text`: its name only says that it is XML, and it holds many documents. Cost: one open and one read per file. A chunk
holds a few MiB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from datakit.errors import UnreadableError
from datakit.normalize.formats import TEXT
from datakit.normalize.readers.base import Chunk, Chunks, ReadContext
from datakit.normalize.readers.line_chunks import BYTE_ORDER_MARK, CHUNK_BYTES
from datakit.normalize.readers.streams import DamagedError, DamagedStreamError, decompressed

_WIKI_DUMP = re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?<mediawiki[\s>]")
_IS_WIKI_DUMP = 'a MediaWiki dump; set `format = "mediawiki"` for its pages, or `format = "text"` for one document'


def read_texts(context: ReadContext, paths: Sequence[str]) -> Chunks:
    """Yield the documents in the files `paths`, in order."""
    names: list[str] = []
    texts: list[bytes] = []
    size = 0
    for path in paths:
        text = _read(context, path)
        if text is not None:
            names.append(path)
            texts.append(text)
            size += len(text)
        if size >= CHUNK_BYTES:
            yield _chunk(context, names, texts)
            names, texts, size = [], [], 0
    if texts:
        yield _chunk(context, names, texts)


def _read(context: ReadContext, path: str) -> bytes | None:
    """Return the content of a file; if the file cannot be used, quarantine it and return None.

    A damaged or truncated file is quarantined as a whole; no part of its text is used.
    """
    if context.start_batch(path, np.zeros(1, np.int64), lambda row: None) is not None:
        return None
    with context.inputs.open(path) as file:
        try:
            text = _read_within(file, path, context.config.max_document_bytes)
            if context.config.format != TEXT and _WIKI_DUMP.match(text):
                raise UnreadableError(_IS_WIKI_DUMP)
            return text
        except DamagedStreamError as error:
            context.counts.unreadable(path, 0, error.reason)
            return None
        except (DamagedError, UnreadableError) as error:
            context.counts.unreadable(path, 0, str(error))
            return None


def _read_within(file: BinaryIO, path: str, limit: int) -> bytes:
    parts, size = [], 0
    for part in decompressed(file, path):
        size += len(part)
        if size > limit + len(BYTE_ORDER_MARK):
            raise UnreadableError(f"longer than max_document_bytes ({limit})")
        parts.append(part)
    return b"".join(parts).removeprefix(BYTE_ORDER_MARK)


def _chunk(context: ReadContext, names: list[str], texts: list[bytes]) -> Chunk:
    context.counts.add_read(len(names))
    text, name = context.config.text_column or "text", context.config.id or "id"
    table = pa.table({text: pa.array(texts, pa.large_binary()), name: pa.array(names, pa.string())})
    return Chunk(names[0], table, np.zeros(len(names), np.int64), sum(map(len, texts)), tuple(names))
