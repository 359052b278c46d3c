"""Annotator `script`: which Unicode scripts the letters of a document belong to, without a model.

Columns, one row per document:

    letters  uint64             number of letters (see `letters`)
    script   string, nullable   the script with the most letters, as an ISO 15924 code; null without letters
    share    float32, nullable  the share of the letters that belong to it
    scripts  list of (script, share), by descending share; scripts with equal shares in alphabetical order

Letters that several scripts share, such as the Japanese prolonged sound mark or mathematical letters, count as the
script `Zyyy` (Common). Japanese text is therefore a mixture of `Hira`, `Kana`, `Hani` and `Zyyy`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.language.letters import count_scripts, scripts
from datakit.text.string_buffers import string_buffers

SHARE = pa.struct([pa.field("script", pa.string(), nullable=False), pa.field("share", pa.float32(), nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("letters", pa.uint64(), nullable=False),
        pa.field("script", pa.string()),
        pa.field("share", pa.float32()),
        pa.field("scripts", pa.list_(pa.field("element", SHARE, nullable=False)), nullable=False),
    ]
)


class ScriptAnnotator:
    """The annotator; see the module's docstring."""

    name = "script"
    columns: tuple[str, ...] = (TEXT,)
    schema = SCHEMA
    sparse = False

    def __init__(self, version: int) -> None:
        self.version = version
        self.parameters: dict[str, Any] = {}

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema for each document of the batch."""
        data, offsets = string_buffers(batch[TEXT])
        names, table = scripts()
        count = len(offsets) - 1
        letters, ends = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
        capacity = int(np.minimum(np.diff(offsets), len(names)).sum())
        found, counts = np.empty(capacity, np.uint8), np.empty(capacity, np.int64)
        count_scripts(data, offsets, table, int(table[ord("a")]), letters, ends, found, counts)
        found, counts = found[: ends[-1]], counts[: ends[-1]]
        shares = (counts / np.repeat(letters, np.diff(ends))).astype(np.float32)
        codes = pa.array(names, pa.string()).take(pa.array(found))
        pairs = pa.StructArray.from_arrays([codes, pa.array(shares)], fields=[SHARE.field(0), SHARE.field(1)])
        first = pa.array(ends[:-1], mask=letters == 0)
        offsets32 = pa.array(ends.astype(np.int32))
        listed = pa.ListArray.from_arrays(offsets32, pairs, type=SCHEMA.field("scripts").type)
        columns = [pa.array(letters.astype(np.uint64)), codes.take(first), pa.array(shares).take(first), listed]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
