"""Writes one shard of the token cache (loss mask, tokens, lengths, docs.parquet): collects its tokens in memory and
writes each file once, metadata last. The loss mask, if any, is written first, followed by the data file, the documents'
lengths, the list of documents, and finally zarr.json. A shard that has its zarr.json is therefore complete. The bytes
written depend only on the documents, not on how the documents were batched. Memory: the size of the tokens for a raw
shard, and at most three times the size of the tokens for a compressed shard. In memory, a token takes 2 bytes for a raw
shard and 4 bytes for a compressed shard. Writing 1 GiB of text at 3.5 bytes per token therefore takes 0.6 GiB (raw) or
at most 3.4 GiB (compressed) of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract, check_ends
from datakit.cache.document_index import SCHEMA, document_table
from datakit.cache.layout import (
    DATA_FILE,
    DOCUMENTS_SUFFIX,
    FREQUENT_IN_SHARD,
    LOSS_MASK_SUFFIX,
    METADATA_FILE,
    ArrayForm,
    ShardFiles,
    SideFiles,
    array_form,
    length_histogram,
    most_frequent,
)
from datakit.cache.lengths import LENGTHS_SUFFIX, encode_lengths
from datakit.cache.written_shards import WrittenShard
from datakit.cache.zarr_arrays import encode_array
from datakit.engine.task import OutputFile, TaskContext
from datakit.errors import CorruptError
from datakit.storage import atomic, urls
from datakit.storage.parquet import ShardWriter

EMPTY_XXH3 = "99aa06d3014798d86001c324468d497f"  # xxh3-128 of no bytes, for a shard that has no tokens


@dataclass(frozen=True)
class Documents:
    """Encoded documents in order. ids: [N]. tokens: [T], the tokens of all documents, end to end. lengths: int64 [N].

    mask: uint8 [T], 1 for each token that is a target; None if all tokens are targets.
    """

    ids: pa.Array
    tokens: np.ndarray
    lengths: np.ndarray
    mask: np.ndarray | None = None


@dataclass
class _Tokens:
    """The tokens collected so far, in a bytearray, which the system enlarges by remapping pages, not by copying."""

    dtype: np.dtype
    vocabulary_size: int
    tokens: bytearray = field(default_factory=bytearray)
    mask: bytearray = field(default_factory=bytearray)
    listed: bytearray = field(default_factory=bytearray)  # the content of the lengths file
    lengths: Counter[str] = field(default_factory=Counter)
    counts: np.ndarray = field(init=False)
    count: int = 0
    first_id: str | None = None
    last_id: str | None = None

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.vocabulary_size, np.int64)

    def add(self, part: Documents, path: str) -> None:
        """Append a batch of documents. Raises CorruptError if only some of the batches have loss masks."""
        if self.count and (part.mask is None) == bool(self.mask) and len(part.tokens):
            raise CorruptError(f"{path}: only some of its documents have a loss mask; the shard was not written")
        tokens = np.ascontiguousarray(part.tokens, self.dtype)
        self.tokens += tokens.data.cast("B") if len(tokens) else b""
        if part.mask is not None and len(part.mask):
            self.mask += np.ascontiguousarray(part.mask, np.uint8).data
        self.lengths.update(length_histogram(part.lengths))
        self.listed += encode_lengths(part.lengths)
        np.add.at(self.counts, tokens, 1)  # unlike np.bincount, makes no copy of the tokens with 8 bytes per token
        self.count += len(tokens)
        if len(part.ids):
            self.first_id, self.last_id = self.first_id or part.ids[0].as_py(), part.ids[-1].as_py()

    def give_tokens(self) -> bytearray:
        """Return all tokens and drop the reference to them, so that the caller can free their memory."""
        given, self.tokens = self.tokens, bytearray()
        return given

    def give_mask(self) -> bytearray:
        given, self.mask = self.mask, bytearray()
        return given


def write_shard(
    source: str, path: str, parts: Iterable[Documents], contract: Contract, context: TaskContext
) -> tuple[WrittenShard, tuple[OutputFile, ...]]:
    """Write the documents in `parts` as a shard of `source`, and commit it at `path` (see `layout.shard_name`) in the
    step's directory. Returns descriptions of the shard and of its files. Raises CorruptError if a document violates the
    contract or if only some of the documents have loss masks. If iterating over `parts` raises an error, nothing is
    committed.
    """
    taken, absent = _Tokens(contract.dtype, contract.vocabulary_size), OutputFile("", 0, EMPTY_XXH3)
    data, late, mask, side = absent, None, (), None
    with ShardWriter(urls.join(context.step_directory, path + DOCUMENTS_SUFFIX), SCHEMA) as documents:
        for part in parts:
            check_ends(part.tokens, part.lengths, contract, path)
            taken.add(part, path)
            documents.write(document_table(part.ids, part.lengths))
        if taken.count:
            mask, side = _write_mask(path, taken, context)
            data, late = _write_array(path, taken.give_tokens(), array_form(contract.dtype), context)
        lengths = _commit(bytes(taken.listed), path + LENGTHS_SUFFIX, context)
    listed = OutputFile(path + DOCUMENTS_SUFFIX, documents.info.bytes, documents.info.xxh3, documents.info.rows)
    metadata = _commit(late, f"{path}/{METADATA_FILE}", context) if late is not None else absent
    shard = WrittenShard(
        source=source,
        text_bytes=None,
        first_id=taken.first_id,
        last_id=taken.last_id,
        quarantined=0,
        path=path,
        rows=listed.rows,
        tokens=taken.count,
        bytes=data.bytes,
        xxh3=data.xxh3,
        lengths=dict(taken.lengths),
        frequent=most_frequent(taken.counts, FREQUENT_IN_SHARD),
        files=ShardFiles(metadata.bytes, metadata.xxh3, listed.bytes, listed.xxh3, lengths.xxh3, side),
    )
    return shard, tuple(file for file in (data, *mask, lengths, listed, metadata) if file is not absent)


def _write_mask(path: str, taken: _Tokens, context: TaskContext) -> tuple[tuple[OutputFile, ...], SideFiles | None]:
    if not taken.mask:
        return (), None
    total = int(np.frombuffer(taken.mask, np.uint8).sum())
    data, late = _write_array(path + LOSS_MASK_SUFFIX, taken.give_mask(), array_form(np.dtype(np.uint8)), context)
    metadata = _commit(late, f"{path}{LOSS_MASK_SUFFIX}/{METADATA_FILE}", context)
    return (data, metadata), SideFiles(data.bytes, data.xxh3, metadata.bytes, metadata.xxh3, total)


def _write_array(path: str, values: bytearray, form: ArrayForm, context: TaskContext) -> tuple[OutputFile, bytes]:
    """Encode the values and commit the data file; return its description, and the contents of zarr.json, which the
    caller must commit last. The caller must not keep a reference to `values`, so that the memory of the values is freed
    as soon as TensorStore releases it.
    """
    data, metadata = encode_array(values, form, context.cpus)
    del values
    return _commit(data, f"{path}/{DATA_FILE}", context), metadata


def _commit(data: bytes | bytearray, path: str, context: TaskContext) -> OutputFile:
    committed = atomic.commit_bytes(data, urls.join(context.step_directory, path))
    return OutputFile(path, committed.bytes, committed.xxh3)
