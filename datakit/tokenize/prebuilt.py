"""Checks prebuilt tokens and loss masks (types, lengths, range of ids), and removes the begin- and end-of-text tokens
that the contract adds again. Prebuilt tokens are a column of lists of integers. An optional column with lists of the
same lengths marks each token as a target (1) or not (0). The contract's tokens are added around each list of tokens, as
around any document, but never twice: a begin- or end-of-text token that is already present is removed first. When it is
added again, it keeps its value in the loss mask. A document of prebuilt tokens also needs a text, because the
document's id is computed from the text, and dedup compares texts. The transform `with_text` makes this text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.cache.contract import Contract, frame_mask
from datakit.cache.lengths import starts_of
from datakit.errors import CorruptError, TokenizerError

TRANSFORM_VERSION = 1


def prebuilt_tokens(column: pa.Array, contract: Contract, place: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids, uint32 [T], in all lists of a list<int> column, and the number of ids in each list, int64 [N].

    Raises CorruptError if the column has another type or contains nulls, and TokenizerError if an id is not in the
    vocabulary.
    """
    values, lengths = _lists(column, place)
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= contract.vocabulary_size):
        raise TokenizerError(
            f"{place}: prebuilt tokens range from {values.min()} to {values.max()}, but the vocabulary has only "
            f"{contract.vocabulary_size} ids; the tokens were made with another tokenizer"
        )
    return values.astype(np.uint32), lengths


def prebuilt_mask(column: pa.Array, lengths: np.ndarray, place: str) -> np.ndarray:
    """Return the loss mask that a list<int> column holds, as uint8 [T]. lengths: the number of tokens of each document.
    Raises CorruptError unless the mask has a 0 or a 1 for each token.
    """
    values, found = _lists(column, place)
    if len(found) != len(lengths) or (found != lengths).any():
        raise CorruptError(f"{place}: a loss mask and its tokens have different lengths")
    if len(values) and not np.isin(values, (0, 1)).all():
        raise CorruptError(f"{place}: a loss mask has values other than 0 and 1")
    return values.astype(np.uint8)


def unframed(ids: np.ndarray, lengths: np.ndarray, contract: Contract) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of the tokens to keep, bool [T], and the number of tokens that remain in each document, int64 [N].

    The mask is False for the begin- and end-of-text tokens that the contract will add again.
    """
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


def framed_mask(mask: np.ndarray, ids: np.ndarray, lengths: np.ndarray, contract: Contract) -> np.ndarray:
    """Return the loss mask, uint8, of the documents with the contract's tokens added around them. mask: the loss mask
    of the prebuilt tokens `ids`, uint8 [T].

    A begin- or end-of-text token that the prebuilt tokens already contain keeps its value in the mask.
    """
    kept, left = unframed(ids, lengths, contract)
    out = frame_mask(mask[kept], left, contract)
    starts, framed = starts_of(lengths), starts_of(left + int(contract.bos is not None) + int(contract.eos is not None))
    gone = np.flatnonzero(~kept)
    rows = np.searchsorted(starts, gone, "right") - 1
    at_end = (gone == starts[rows + 1] - 1) & (contract.eos is not None and ids[gone] == contract.eos.id)
    out[np.where(at_end, framed[rows + 1] - 1, framed[rows])] = mask[gone]
    return out


def with_text(records: pa.RecordBatch) -> pa.RecordBatch:
    """Add the column `text`: the `tokens` as decimal numbers separated by spaces. Use it as a source's `transform`."""
    words = pc.binary_join(records.column("tokens").cast(pa.list_(pa.string())), " ")  # pyright: ignore
    kept = [name for name in records.schema.names if name != "text"]
    return records.select(kept).append_column("text", words.cast(pa.large_string()))


def _lists(column: pa.Array, place: str) -> tuple[np.ndarray, np.ndarray]:
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise CorruptError(f"{place}: prebuilt tokens and loss masks must be lists of integers, not of type {kind}")
    flat = column.flatten()
    if column.null_count or flat.null_count:
        raise CorruptError(f"{place}: a list of tokens or a loss mask is null or contains a null")
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)  # pyright: ignore
    return flat.to_numpy(zero_copy_only=False), lengths
