"""Writes one shard of the token cache: collects the tokens in memory, then writes each file once.

The data file is written first, then the loss mask if there is one, then the documents' lengths and list, and zarr.json
last, so that a shard with metadata is complete. The bytes depend on the documents alone, not on how they were batched.

Memory: three times the tokens of the shard, both raw (2 bytes each) and compressed (4 bytes each). A text of 1 GiB at
3.5 bytes per token takes 1.8 GiB or 3.6 GiB.
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

EMPTY_XXH3 = "99aa06d3014798d86001c324468d497f"  # xxh3-128 of zero bytes: the data of a shard without tokens


@dataclass(frozen=True)
class Documents:
    """Encoded documents in order: ids [N], tokens [T] end to end, lengths int64 [N].

    mask: uint8 [T], 1 for a token that is a target; None if all are.
    """

    ids: pa.Array
    tokens: np.ndarray
    lengths: np.ndarray
    mask: np.ndarray | None = None


@dataclass(frozen=True)
class TokenShard:
    """A committed shard. `data` and `metadata` are the array's two files, None if there are no tokens.

    lengths: documents by number of tokens (layout.length_histogram); `lengths_file` has the length of each document.
    frequent: its most frequent tokens by id. mask, side: the files of its loss mask, and their description.
    """

    path: str
    tokens: int
    lengths: dict[str, int]
    data: OutputFile | None
    documents: OutputFile
    lengths_file: OutputFile
    metadata: OutputFile | None
    frequent: dict[str, int] = field(default_factory=dict)
    mask: tuple[OutputFile, ...] = ()
    side: SideFiles | None = None

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """The shard's files, in the order they were committed."""
        found = (self.data, *self.mask, self.lengths_file, self.documents, self.metadata)
        return tuple(file for file in found if file is not None)

    def describe(
        self, source: str, text_bytes: int | None, ends: tuple[str | None, str | None], quarantined: int = 0
    ) -> WrittenShard:
        """The shard's description for the manifest; `ends`: ids of its first and last document."""
        data = self.data or OutputFile("", 0, EMPTY_XXH3)
        metadata = self.metadata or OutputFile("", 0, EMPTY_XXH3)
        return WrittenShard(
            source=source,
            text_bytes=text_bytes,
            first_id=ends[0],
            last_id=ends[1],
            quarantined=quarantined,
            path=self.path,
            rows=self.documents.rows,
            tokens=self.tokens,
            bytes=data.bytes,
            xxh3=data.xxh3,
            lengths=self.lengths,
            frequent=self.frequent,
            files=ShardFiles(
                metadata_bytes=metadata.bytes,
                metadata_xxh3=metadata.xxh3,
                documents_bytes=self.documents.bytes,
                documents_xxh3=self.documents.xxh3,
                lengths_xxh3=self.lengths_file.xxh3,
                loss_mask=self.side,
            ),
        )


@dataclass
class _Tokens:
    """The tokens collected so far. A bytearray grows in place: the system remaps pages instead of copying."""

    dtype: np.dtype
    vocabulary_size: int
    tokens: bytearray = field(default_factory=bytearray)
    mask: bytearray = field(default_factory=bytearray)
    listed: bytearray = field(default_factory=bytearray)  # the lengths as bytes of their file
    lengths: Counter[str] = field(default_factory=Counter)
    counts: np.ndarray = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.vocabulary_size, np.int64)

    def add(self, part: Documents, path: str) -> None:
        """Append a batch. Raises CorruptError if only some batches have masks."""
        if self.count and (part.mask is None) == bool(self.mask) and len(part.tokens):
            raise CorruptError(f"{path}: some of its documents have a loss mask and some do not; shard not written")
        tokens = np.ascontiguousarray(part.tokens, self.dtype)
        self.tokens += tokens.data.cast("B") if len(tokens) else b""
        if part.mask is not None and len(part.mask):
            self.mask += np.ascontiguousarray(part.mask, np.uint8).data
        self.lengths.update(length_histogram(part.lengths))
        self.listed += encode_lengths(part.lengths)
        self.counts += np.bincount(tokens, minlength=self.vocabulary_size)
        self.count += len(tokens)

    def give_tokens(self) -> bytearray:
        """Hand over all tokens to the caller."""
        given, self.tokens = self.tokens, bytearray()
        return given

    def give_mask(self) -> bytearray:
        """Hand over the whole mask to the caller."""
        given, self.mask = self.mask, bytearray()
        return given


def write_shard(path: str, parts: Iterable[Documents], contract: Contract, context: TaskContext) -> TokenShard:
    """Write and commit the shard `path` (relative to the step). Raises CorruptError if documents break the contract.

    If `parts` raises, nothing is committed.
    """
    taken = _Tokens(contract.dtype, contract.vocabulary_size)
    data, late, mask, side = None, None, (), None
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
    metadata = _commit(late, f"{path}/{METADATA_FILE}", context) if late is not None else None
    frequent = most_frequent(taken.counts, FREQUENT_IN_SHARD)
    return TokenShard(path, taken.count, dict(taken.lengths), data, listed, lengths, metadata, frequent, mask, side)


def _write_mask(path: str, taken: _Tokens, context: TaskContext) -> tuple[tuple[OutputFile, ...], SideFiles | None]:
    if not taken.mask:
        return (), None
    total = int(np.frombuffer(taken.mask, np.uint8).sum())
    data, late = _write_array(path + LOSS_MASK_SUFFIX, taken.give_mask(), array_form(np.dtype(np.uint8)), context)
    metadata = _commit(late, f"{path}{LOSS_MASK_SUFFIX}/{METADATA_FILE}", context)
    return (data, metadata), SideFiles(data.bytes, data.xxh3, metadata.bytes, metadata.xxh3, total)


def _write_array(path: str, values: bytearray, form: ArrayForm, context: TaskContext) -> tuple[OutputFile, bytes]:
    """Encode and commit the data; return the metadata for the caller to commit last.

    `values` must be the only reference: its memory is freed when TensorStore releases it, which may be a moment later.
    """
    data, metadata = encode_array(np.frombuffer(values, form.dtype), form, context.cpus)
    del values
    return _commit(data, f"{path}/{DATA_FILE}", context), metadata


def _commit(data: bytes, path: str, context: TaskContext) -> OutputFile:
    committed = atomic.commit_bytes(data, urls.join(context.step_directory, path))
    return OutputFile(path, committed.bytes, committed.xxh3)
