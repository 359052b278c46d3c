"""Reads and writes Megatron's indexed datasets: tokens in `<prefix>.bin`, everything else in `<prefix>.idx`.
`docs/cache.md` describes the files that are written. Files from other programs may have several sequences per document,
other integer types for tokens (see TYPES) and, in multimodal datasets, a list of the sequences' modes (int8) at the end
of the `.idx` file. Memory to read them: 40 to 50 bytes
per document; to write them: a few blocks of tokens, and the lengths of the documents of one shard.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from datakit.cache.read_ahead import BLOCK_TOKENS, block_ranges
from datakit.cache.reader import Cache
from datakit.errors import CorruptError, UsageError
from datakit.interop.export import (
    Choice,
    ContentDigest,
    Exported,
    Progress,
    choose,
    refuse_loss_masks,
    require_equal,
    silent,
)
from datakit.interop.import_cache import ExternalTokens
from datakit.storage import atomic, urls

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
TYPES: dict[int, type[np.integer]] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
# The format has no uint32, but int32 holds ids below 2**31.
CODES: dict[np.dtype, int] = {np.dtype(np.uint16): 8, np.dtype(np.uint32): 4}
MOST = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Index:
    """The content of an `.idx` file. lengths: [sequences], the number of tokens in each sequence. pointers:
    [sequences], each sequence's byte offset in the `.bin` file. borders: [documents + 1], the index of each document's
    first sequence, followed by the number of sequences.
    """

    dtype: np.dtype
    lengths: np.ndarray
    pointers: np.ndarray
    borders: np.ndarray


def is_megatron(prefix: str) -> bool:
    return urls.exists(f"{prefix}.idx")


def export_megatron(
    cache: Cache, prefix: str, source: str | None = None, *, drop_loss_mask: bool = False, progress: Progress = silent
) -> Exported:
    """Write a cache, or one of its sources or document buckets, as `<prefix>.bin` and then `<prefix>.idx`. The format
    has no loss masks, so documents with loss masks are refused unless `drop_loss_mask` is true. Raises UsageError for
    an unknown source or for documents that the format cannot hold, CorruptError, and DivergentOutputError if different
    files with these names exist.
    """
    choice = choose(cache, source)
    refuse_loss_masks(choice, "Megatron", drop_loss_mask)
    if cache.contract.vocabulary_size > MOST:
        raise UsageError(f"{cache.directory}: the Megatron format cannot store ids above {MOST}")
    dtype = np.dtype(TYPES[CODES[cache.contract.dtype]])
    with ExitStack() as stack:
        data, index = (stack.enter_context(atomic.staging(f"{prefix}.{ending}")) for ending in ("bin", "idx"))
        sent = ContentDigest()
        _write_tokens(data, choice, dtype, sent, progress)
        _write_index(index, choice, dtype, sent)
        empty = choice.documents - sent.documents
        require_equal(prefix, sent, _written(data, index, dtype), choice, empty)
        places = tuple(
            atomic.commit_file(path, f"{prefix}.{name}").url for path, name in ((data, "bin"), (index, "idx"))
        )
    return Exported(places, sent.documents, sent.tokens, empty)


def _write_tokens(path: Path, choice: Choice, dtype: np.dtype, sent: ContentDigest, progress: Progress) -> None:
    ranges = ((s.token_start + a, s.token_start + b) for s in choice.shards for a, b in block_ranges(s.tokens))
    with open(path, "wb") as file:
        for block in choice.cache.blocks(ranges):
            sent.add_tokens(block)
            block.astype(dtype, copy=False).tofile(file)
            progress(sent.tokens, choice.tokens, "tokens")


def _filled_lengths(choice: Choice) -> Iterator[np.ndarray]:
    """Yield the lengths of each shard's documents that have tokens, int64."""
    for shard in choice.shards:
        lengths = choice.cache.document_lengths(shard.index).astype(np.int64)
        if len(lengths) and lengths.max() > MOST:
            raise UsageError(
                f"{choice.cache.directory}: a document of {lengths.max()} tokens is too long for the Megatron format"
            )
        yield lengths[lengths > 0]


def _write_index(path: Path, choice: Choice, dtype: np.dtype, sent: ContentDigest) -> None:
    """Write the three lists of the index one after another, each from the lengths of one shard at a time."""
    count = sum(len(lengths) for lengths in _filled_lengths(choice))
    code = next(code for code, kind in TYPES.items() if np.dtype(kind) == dtype)
    with open(path, "wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, code, count, count + 1))
        for lengths in _filled_lengths(choice):
            sent.add_lengths(lengths)
            lengths.astype("<i4").tofile(file)
        start = 0
        for lengths in _filled_lengths(choice):
            ends = start + np.cumsum(lengths * dtype.itemsize)
            (ends - lengths * dtype.itemsize).astype("<i8").tofile(file)
            start = int(ends[-1]) if len(ends) else start
        for first, last in block_ranges(count + 1):
            np.arange(first, last, dtype="<i8").tofile(file)


def _written(data: Path, index: Path, dtype: np.dtype) -> ContentDigest:
    """Read both files again, in blocks, as one sequence per document. Whatever contradicts this changes the digest."""
    found, start, places = ContentDigest(), 0, HEADER.size
    with open(index, "rb") as file:
        _, _, _, count, borders = HEADER.unpack(file.read(HEADER.size))
        for first, last in block_ranges(count):
            lengths = _part(file, "<i4", places, first, last).astype(np.int64)
            pointers = _part(file, "<i8", places + 4 * count, first, last)
            documents = _part(file, "<i8", places + 12 * count, first, last + 1)
            ends = start + np.cumsum(lengths)
            straight = np.array_equal(pointers, (ends - lengths) * dtype.itemsize)
            if straight and np.array_equal(documents, np.arange(first, last + 1)) and borders == count + 1:
                found.add_lengths(lengths)
            start = int(ends[-1])
    with open(data, "rb") as file:
        while len(tokens := np.fromfile(file, dtype.newbyteorder("<"), BLOCK_TOKENS)):
            found.add_tokens(tokens)
    return found


def _part(file: BinaryIO, kind: str, begin: int, first: int, last: int) -> np.ndarray:
    """Read elements [first, last) of the list that begins at byte `begin`."""
    file.seek(begin + first * np.dtype(kind).itemsize)
    return np.fromfile(file, kind, last - first)


def read_megatron(prefix: str) -> ExternalTokens:
    """Open a dataset. A document may have any number of sequences. Raises NotFoundError, CorruptError or UsageError."""
    index, data = read_index(f"{prefix}.idx"), f"{prefix}.bin"
    item = index.dtype.itemsize
    needed = int((index.pointers + index.lengths * item).max()) if len(index.lengths) else 0
    if urls.size(data) < needed:
        raise CorruptError(f"{data} has {urls.size(data)} bytes, but its index requires {needed}; copy the file again")
    starts = np.concatenate([[0], np.cumsum(index.lengths)])
    straight = index.pointers[1:] == index.pointers[:-1] + index.lengths[:-1] * item

    def read(start: int, stop: int) -> np.ndarray:
        first, last = (int(place) for place in np.searchsorted(starts, [start, stop], "left"))
        breaks = first + 1 + np.flatnonzero(~straight[first : max(last - 1, first)])
        edges = [first, *breaks.tolist(), last]
        parts = [_sequences(data, index, a, b) for a, b in pairwise(edges) if a < b]
        return np.concatenate(parts) if parts else np.empty(0, index.dtype)

    return ExternalTokens(prefix, np.diff(starts[index.borders]), read)


def _sequences(data: str, index: Index, first: int, last: int) -> np.ndarray:
    """Read sequences [first, last), which must be contiguous in the file."""
    item = index.dtype.itemsize
    begin, end = int(index.pointers[first]), int(index.pointers[last - 1] + index.lengths[last - 1] * item)
    return np.frombuffer(urls.read_range(data, begin, end), index.dtype.newbyteorder("<"))


def read_index(url: str) -> Index:
    """Read and check an `.idx` file. Raises NotFoundError, CorruptError or UsageError."""
    data = urls.read_bytes(url)
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise UsageError(f"{url} is not the index of a Megatron dataset: it does not begin with {MAGIC!r}")
    _, version, code, sequences, borders = HEADER.unpack_from(data)
    if version != VERSION or code not in TYPES:
        raise UsageError(
            f"{url} has version {version} and token type {code}; only version {VERSION} with integer tokens can be read"
        )
    size = HEADER.size + 12 * sequences + 8 * borders
    if len(data) not in (size, size + sequences):
        raise CorruptError(
            f"{url} has {len(data)} bytes, but an index of {sequences} sequences and {borders - 1} documents has {size}"
        )
    lengths = np.frombuffer(data, "<i4", sequences, HEADER.size).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", sequences, HEADER.size + 4 * sequences)
    documents = np.frombuffer(data, "<i8", borders, HEADER.size + 12 * sequences)
    whole = len(documents) > 0 and documents[0] == 0 and documents[-1] == sequences
    if not whole or (np.diff(documents) < 0).any() or (lengths < 0).any():
        raise CorruptError(f"{url}: its documents do not cover its {sequences} sequences in order")
    return Index(np.dtype(TYPES[code]), lengths, pointers, documents)
