"""`shard-00017.docs.parquet`: which document each stretch of a shard's tokens is.

It needs pyarrow, which a trainer may not have, nor need: this module is imported when somebody asks for a document.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError
from datakit.storage.parquet import read_shard

SCHEMA = pa.schema([("id", pa.string()), ("tokens", pa.uint32())])


def document_table(ids: pa.Array, lengths: np.ndarray) -> pa.Table:
    """Rows for documents of these ids and lengths."""
    return pa.table([ids.cast(pa.string()), pa.array(lengths.astype(np.uint32))], schema=SCHEMA)


def read_documents(url: str, rows: int, tokens: int) -> tuple[Any, np.ndarray]:
    """A shard's ids (an Arrow string array) and where each document's tokens begin, int64 [N + 1], from 0.

    Raises CorruptError unless it lists `rows` documents of `tokens` tokens together.
    """
    table = read_shard(url, ["id", "tokens"])
    starts = checked_starts(url, table.column("tokens").to_numpy(), rows, tokens)
    return table.column("id").combine_chunks(), starts


def checked_starts(url: str, lengths: np.ndarray, rows: int, tokens: int) -> np.ndarray:
    """Where documents of these lengths begin, and where the last one ends. Raises CorruptError as above."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    if len(lengths) != rows or starts[-1] != tokens:
        raise CorruptError(
            f"{url} lists {len(lengths)} documents of {starts[-1]} tokens; the manifest says {rows} of {tokens}"
        )
    return starts
