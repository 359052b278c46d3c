"""`shard-00017.docs.parquet`: which document each stretch of a shard's tokens is (lengths.py has the lengths alone).

It needs pyarrow, which a trainer may not have, nor need: this module is imported when somebody asks for a document.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("id", pa.string()), ("tokens", pa.uint32())])


def document_table(ids: pa.Array, lengths: np.ndarray) -> pa.Table:
    """Rows for documents of these ids and lengths."""
    return pa.table([ids.cast(pa.string()), pa.array(lengths.astype(np.uint32))], schema=SCHEMA)
