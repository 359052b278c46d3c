"""Prebuilt tokens: passes on a column of lists of integers and checks every id.

An optional column of lists of the same lengths marks the targets (0 or 1). The contract's tokens are added around these
documents as around any others, but never twice: a begin-of-text or end-of-text already present is removed first.

Like every document, such a list needs a text from which its id is made and which dedup compares; the transform
`with_text` makes one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.cache.contract import Contract
from datakit.errors import CorruptError, TokenizerError

TRANSFORM_VERSION = 1


def prebuilt_tokens(column: pa.Array, contract: Contract, place: str) -> tuple[np.ndarray, np.ndarray]:
    """Return ids uint32 [T] and lengths int64 [N] of a list<int> column. Raises CorruptError, TokenizerError."""
    values, lengths = _lists(column, place)
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= contract.vocabulary_size):
        raise TokenizerError(
            f"{place}: prebuilt tokens range from {values.min()} to {values.max()}; the vocabulary has "
            f"{contract.vocabulary_size} ids: they were made with another tokenizer"
        )
    return values.astype(np.uint32), lengths


def prebuilt_mask(column: pa.Array, lengths: np.ndarray, place: str) -> np.ndarray:
    """Return the mask, uint8 [T], from a list<int> column with 0 or 1 for each token. Raises CorruptError."""
    values, found = _lists(column, place)
    if len(found) != len(lengths) or (found != lengths).any():
        raise CorruptError(f"{place}: a loss mask and its tokens have different lengths")
    if len(values) and not np.isin(values, (0, 1)).all():
        raise CorruptError(f"{place}: a loss mask has values other than 0 and 1")
    return values.astype(np.uint8)


def unframed(ids: np.ndarray, lengths: np.ndarray, contract: Contract) -> tuple[np.ndarray, np.ndarray]:
    """Return (mask of tokens to keep [T], remaining lengths), leaving out end tokens that the contract adds again."""
    kept = np.ones(len(ids), bool)
    left = lengths.copy()
    ends = np.cumsum(lengths)
    for special, places in ((contract.eos, ends - 1), (contract.bos, ends - lengths)):
        if special is not None and len(ids):
            there = np.flatnonzero(lengths > 0)
            there = there[(ids[places[there]] == special.id) & kept[places[there]]]
            kept[places[there]] = False
            left[there] -= 1
    return kept, left


def with_text(records: pa.RecordBatch) -> pa.RecordBatch:
    """A source's `transform`: make the column `text` from `tokens`, as decimal numbers separated by spaces."""
    words = pc.binary_join(records.column("tokens").cast(pa.list_(pa.string())), " ")  # pyright: ignore
    kept = [name for name in records.schema.names if name != "text"]
    return records.select(kept).append_column("text", words.cast(pa.large_string()))


def _lists(column: pa.Array, place: str) -> tuple[np.ndarray, np.ndarray]:
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise CorruptError(f"{place}: a column of prebuilt tokens is {kind}, not a list of integers")
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise CorruptError(f"{place}: a list of tokens is null or contains a null")
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)  # pyright: ignore
    return flat.to_numpy(zero_copy_only=False), lengths
