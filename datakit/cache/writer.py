"""Writes one shard of the token cache (loss mask, tokens, lengths, docs.parquet): writes each file once, metadata last.
The loss mask, if any, is committed first, followed by the data file, the documents' lengths, the list of documents, and
finally zarr.json. A shard that has its zarr.json is therefore complete. The bytes written depend only on the documents,
not on how the documents were batched. Memory: a raw shard is written as its documents arrive, so only a batch is held;
a compressed shard is collected in memory, at 4 bytes per token, and held up to three times. Writing 1 GiB of text at
3.5 bytes per token as a compressed shard therefore takes at most 3.4 GiB of memory.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

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
from datakit.cache.raw_shard import RAW, RawWriter, encoded_metadata
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


class _Collected:
    """Collects the values of a compressed array in a bytearray, and commits the array's data file at `path`."""

    def __init__(self, path: str, form: ArrayForm, context: TaskContext) -> None:
        self._path, self._form, self._context, self._values = path, form, context, bytearray()

    def add(self, values: np.ndarray) -> None:
        self._values += np.ascontiguousarray(values, self._form.dtype).view(np.uint8).data

    def commit(self) -> tuple[OutputFile, bytes]:
        """Return a description of the data file, and the content of zarr.json, which the caller must commit last."""
        values, self._values = self._values, bytearray()  # so that their memory is freed once TensorStore releases it
        data, metadata = encode_array(values, self._form, self._context.cpus)
        del values
        return _commit(data, f"{self._path}/{DATA_FILE}", self._context), metadata


class _Streamed:
    """Writes the values of a raw array to a temporary file, and commits this file as the array's data file. Without
    values, there is no file.
    """

    def __init__(self, path: str, form: ArrayForm, context: TaskContext, stack: ExitStack) -> None:
        self._data, self._form, self._stack = f"{path}/{DATA_FILE}", form, stack
        self._url = _url(self._data, context)
        self._staged: Path | None = None

    def add(self, values: np.ndarray) -> None:
        if not len(values):
            return
        if self._staged is None:
            self._staged = self._stack.enter_context(atomic.staging(self._url))
            self._file = self._stack.enter_context(open(self._staged, "wb"))  # noqa: SIM115 - the stack closes it
            self._writer = RawWriter(self._file, np.dtype(self._form.dtype))
        with atomic.storage_errors(self._url):
            self._writer.add(values)

    def commit(self) -> tuple[OutputFile, bytes]:
        """Return the same as `_Collected.commit`."""
        assert self._staged is not None
        written = self._writer
        metadata = self._form.metadata(written.bytes // np.dtype(self._form.dtype).itemsize)
        with atomic.storage_errors(self._url):
            written.finish(metadata)
            self._file.flush()
        committed = atomic.commit_written(self._staged, self._url, written.xxh3, written.bytes)
        return OutputFile(self._data, committed.bytes, committed.xxh3), encoded_metadata(metadata)


@dataclass
class _Documents:
    """The documents of a shard so far: where their tokens and loss masks go, and what is counted. targets: the sum of
    the loss masks; None if there are none.
    """

    contract: Contract
    tokens: _Collected | _Streamed
    mask: _Collected
    listed: bytearray = field(default_factory=bytearray)  # the content of the lengths file
    lengths: Counter[str] = field(default_factory=Counter)
    counts: np.ndarray = field(init=False)
    count: int = 0
    targets: int | None = None
    first_id: str | None = None
    last_id: str | None = None

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.contract.vocabulary_size, np.int64)

    def add(self, part: Documents, path: str) -> None:
        """Append a batch of documents. Raises CorruptError if only some of the batches have loss masks."""
        if self.count and (part.mask is None) == (self.targets is not None) and len(part.tokens):
            raise CorruptError(f"{path}: only some of its documents have a loss mask; the shard was not written")
        tokens = np.ascontiguousarray(part.tokens, self.contract.dtype)
        self.tokens.add(tokens)
        if part.mask is not None and len(part.mask):
            self.mask.add(part.mask)
            self.targets = (self.targets or 0) + int(part.mask.sum())
        self.lengths.update(length_histogram(part.lengths))
        self.listed += encode_lengths(part.lengths)
        _add_counts(self.counts, tokens)
        self.count += len(tokens)
        if len(part.ids):
            self.first_id, self.last_id = self.first_id or part.ids[0].as_py(), part.ids[-1].as_py()


def _add_counts(counts: np.ndarray, tokens: np.ndarray) -> None:
    """Add to `counts` how often each token occurs. Raises IndexError for a token that is not in the vocabulary."""
    if "numba" in sys.modules:  # otherwise, loading it would take longer than the kernel saves
        from datakit.text import token_counts

        token_counts.add_counts(counts, tokens)
    else:
        np.add.at(counts, tokens, 1)  # unlike np.bincount, makes no copy of the tokens with 8 bytes per token


def write_shard(
    source: str, path: str, parts: Iterable[Documents], contract: Contract, context: TaskContext
) -> tuple[WrittenShard, tuple[OutputFile, ...]]:
    """Write the documents in `parts` as a shard of `source`, and commit it at `path` (see `layout.shard_name`) in the
    step's directory. Returns descriptions of the shard and of its files. Raises CorruptError if a document violates the
    contract or if only some of the documents have loss masks. If iterating over `parts` raises an error, nothing is
    committed.
    """
    absent = OutputFile("", 0, EMPTY_XXH3)
    data, late, mask, side = absent, None, (), None
    form = array_form(contract.dtype)
    with ShardWriter(_url(path + DOCUMENTS_SUFFIX, context), SCHEMA) as documents, ExitStack() as stack:
        tokens = _Streamed(path, form, context, stack) if form.codecs == RAW else _Collected(path, form, context)
        masks = _Collected(path + LOSS_MASK_SUFFIX, array_form(np.dtype(np.uint8)), context)
        taken = _Documents(contract, tokens, masks)
        for part in parts:
            check_ends(part.tokens, part.lengths, contract, path)
            taken.add(part, path)
            documents.write(document_table(part.ids, part.lengths))
        if taken.count:
            mask, side = _write_mask(path, taken, context)
            data, late = tokens.commit()
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


def _write_mask(path: str, taken: _Documents, context: TaskContext) -> tuple[tuple[OutputFile, ...], SideFiles | None]:
    if taken.targets is None:
        return (), None
    data, late = taken.mask.commit()
    metadata = _commit(late, f"{path}{LOSS_MASK_SUFFIX}/{METADATA_FILE}", context)
    return (data, metadata), SideFiles(data.bytes, data.xxh3, metadata.bytes, metadata.xxh3, taken.targets)


def _commit(data: bytes | bytearray, path: str, context: TaskContext) -> OutputFile:
    committed = atomic.commit_bytes(data, _url(path, context))
    return OutputFile(path, committed.bytes, committed.xxh3)


def _url(path: str, context: TaskContext) -> str:
    return urls.join(context.step_directory, path)
