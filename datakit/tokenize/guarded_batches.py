"""Leaves out quarantined documents, and announces each batch to the engine before the batch is encoded, so that a
document that crashes the encoder can be identified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.engine.task import QuarantinedRecord, TaskContext
from datakit.text.string_buffers import string_buffers
from datakit.tokenize.text_batches import TextBatch


@dataclass
class PartitionGuard:
    """Guards the batches of the partition `name`, and lists the documents that are left out. text_bytes: the number of
    bytes of text so far in the documents that are not left out.
    """

    name: str
    context: TaskContext
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    text_bytes: int = 0

    def batches(self, batches: Iterable[TextBatch], encode_one: Callable[[TextBatch], object]) -> Iterator[TextBatch]:
        """Yield each batch without its quarantined documents. If an earlier attempt died in a batch, `encode_one` is
        first called once for each document of that batch, with a batch of this document alone.
        """
        for batch in batches:
            trial = partial(_encode_row, batch, encode_one)
            allowed, left_out = self.context.records(self.name, batch.rows, trial)
            if allowed is not None:
                batch = _only(batch, np.flatnonzero(allowed))
                self.quarantined += left_out
            self.text_bytes += batch.text_bytes
            if len(batch.ids):
                yield batch
            self.context.release()

    def lose(self, batch: TextBatch, lost: Mapping[int, str]) -> None:
        """List the documents of a batch that could not be encoded, each with the reason. Their text does not count."""
        sizes = np.diff(batch.offsets)
        for row, reason in sorted(lost.items()):
            self.quarantined.append(QuarantinedRecord(self.name, int(batch.rows[row]), reason))
            self.text_bytes -= int(sizes[row])


def _encode_row(batch: TextBatch, encode_one: Callable[[TextBatch], object], row: int) -> None:
    encode_one(_only(batch, [row]))


def _only(batch: TextBatch, rows: Any) -> TextBatch:
    """Return a batch of these rows of `batch`, with all its columns."""
    chosen = {entry.name: _take(getattr(batch, entry.name), pa.array(rows, pa.int64())) for entry in fields(batch)}
    data, offsets = string_buffers(chosen["text"])
    return replace(batch, **{**chosen, "data": data, "offsets": offsets, "rows": batch.rows[rows]})


def _take(value: Any, rows: pa.Array) -> Any:
    if isinstance(value, tuple):
        return tuple(_take(entry, rows) for entry in value)
    return value.take(rows) if isinstance(value, pa.Array) else value
