"""Turns stretches of tokens into documents: objects with an id and an array of tokens, or Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Document:
    """A document's id and its tokens, including those that the contract adds around the document."""

    id: str
    tokens: np.ndarray

    def __repr__(self) -> str:
        return f"Document({self.id}, {len(self.tokens):,} tokens)"


@dataclass(frozen=True)
class Stretch:
    """Consecutive documents of one source. tokens: the tokens of all the documents, end to end. bounds: the documents'
    bounds in `tokens`, int64 [documents + 1]. loss_mask: bool [tokens]; None if it was not read. bucket: their document
    bucket; None if their source is not divided.
    """

    source: str
    ids: pa.Array[Any]
    tokens: np.ndarray
    bounds: np.ndarray
    loss_mask: np.ndarray | None
    bucket: str | None = None

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order."""
        bounds = self.bounds.tolist()
        for name, begin, end in zip(self.ids.to_pylist(), bounds, bounds[1:], strict=False):
            yield Document(name, self.tokens[begin:end])


def record_batches(
    stretches: Iterable[Stretch], dtype: np.dtype, masked: bool, *, buckets: bool = False
) -> pa.RecordBatchReader:
    """Return a reader that yields one record batch per stretch, with the columns id, source, tokens and, if `masked`,
    loss_mask, and if `buckets`, bucket. Each batch is made only when it is read.
    """
    import pyarrow as pa

    fields = [("id", pa.string()), ("source", pa.string()), ("tokens", pa.list_(pa.from_numpy_dtype(dtype)))]
    fields += [("loss_mask", pa.list_(pa.bool_()))] if masked else []
    schema = pa.schema([*fields, ("bucket", pa.string())] if buckets else fields)

    def batch(part: Stretch) -> pa.RecordBatch:
        def lists(values: np.ndarray) -> pa.ListArray[Any]:
            return pa.ListArray.from_arrays(pa.array(part.bounds, pa.int32()), pa.array(values))

        columns = [part.ids, pa.repeat(pa.scalar(part.source), len(part.ids)), lists(part.tokens)]
        mask = [lists(part.loss_mask)] if part.loss_mask is not None else []
        bucket = [pa.repeat(pa.scalar(part.bucket, pa.string()), len(part.ids))] if buckets else []
        return pa.record_batch([*columns, *mask, *bucket], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, map(batch, stretches))
