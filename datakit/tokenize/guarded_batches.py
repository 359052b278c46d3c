"""Takes the documents of a partition in hand, batch by batch, so that one that kills the encoder has a name.

A document that is to be left out never reaches the encoder; what is left out is kept here, for the shard's own numbers.
Nothing is held but the list of those documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.engine.task import QuarantinedRecord, TaskContext
from datakit.text.string_buffers import string_buffers
from datakit.tokenize.text_batches import TextBatch


@dataclass
class InHand:
    """Of one partition, called `name`: which documents were left out, their bytes, and the first and last id kept."""

    name: str
    context: TaskContext
    left_out: list[QuarantinedRecord] = field(default_factory=list)
    text_bytes: int = 0
    ends: tuple[str | None, str | None] = (None, None)

    def batches(self, batches: Iterable[TextBatch], alone: Callable[[TextBatch], object]) -> Iterator[TextBatch]:
        """The batches without those documents; `alone` does with one document what is to be done with all."""
        for batch in batches:
            rows = range(batch.row, batch.row + len(batch.ids))
            kept, left_out = self.context.records(self.name, rows, lambda row, batch=batch: alone(_only(batch, [row])))
            if kept is not None:
                whole, batch = batch, _only(batch, np.flatnonzero(kept))
                self.left_out += left_out
                self.text_bytes += whole.text_bytes - batch.text_bytes
            if len(batch.ids):
                self.ends = (self.ends[0] or batch.ids[0].as_py(), batch.ids[-1].as_py())
                yield batch
            self.context.release()


def _only(batch: TextBatch, rows: Any) -> TextBatch:
    """Some of a batch's documents; every Arrow column of it is cut alike."""
    chosen = {entry.name: _taken(getattr(batch, entry.name), pa.array(rows, pa.int64())) for entry in fields(batch)}
    data, offsets = string_buffers(chosen["text"])
    return replace(batch, **{**chosen, "data": data, "offsets": offsets})


def _taken(value: Any, rows: pa.Array) -> Any:
    if isinstance(value, tuple):
        return tuple(_taken(entry, rows) for entry in value)
    return value.take(rows) if isinstance(value, pa.Array) else value
