"""Reads and writes Megatron's indexed datasets: tokens in `<prefix>.bin`, everything else in `<prefix>.idx`.
`docs/cache.md` describes the files that are written. Files from other programs may have several sequences per document,
other integer types for tokens (see TYPES) and, in multimodal datasets, a list of the sequences' modes (int8) at the end
of the `.idx` file. Memory: 40 to 50 bytes per document.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import Cache
from datakit.errors import CorruptError, UsageError, suggestion
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
class Exported:
    """Summary of an export: files, numbers of sequences and tokens, and number of empty documents left out."""

    files: tuple[str, str]
    sequences: int
    tokens: int
    empty: int


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


def export_megatron(cache: Cache, prefix: str, source: str | None = None, *, drop_loss_mask: bool = False) -> Exported:
    """Write a cache, or one of its sources or document buckets, as `<prefix>.bin` and then `<prefix>.idx`. The format
    has no loss masks, so documents with loss masks are refused unless `drop_loss_mask` is true. Raises UsageError for
    an unknown source or for documents that the format cannot hold, and DivergentOutputError if different files with
    these names exist.
    """
    chosen = [shard.index for shard in cache.shards_of(source)]
    if not chosen:
        raise UsageError(f"{cache.directory} has no source {source!r}; {suggestion(source or '', cache.part_names())}")
    masked = sorted({cache.shards[index].source for index in chosen if cache.details.shards[index].loss_mask})
    if masked and not drop_loss_mask:
        raise UsageError(
            f"{cache.directory}: the Megatron format cannot store the loss masks of {', '.join(masked)}; export "
            "another source, or add --drop-loss-mask to export all tokens as targets"
        )
    if cache.contract.vocabulary_size > MOST:
        raise UsageError(f"{cache.directory}: the Megatron format cannot store ids above {MOST}")
    dtype = np.dtype(TYPES[CODES[cache.contract.dtype]])
    lengths = np.concatenate([cache.document_lengths(index) for index in chosen]).astype(np.int64)
    if len(lengths) and lengths.max() > MOST:
        raise UsageError(f"{cache.directory}: a document of {lengths.max()} tokens is too long for the Megatron format")
    filled = lengths[lengths > 0]
    with ExitStack() as stack:
        data, index = (stack.enter_context(atomic.staging(f"{prefix}.{ending}")) for ending in ("bin", "idx"))
        shards = [cache.shards[i] for i in chosen]
        ranges = [(s.token_start + a, s.token_start + b) for s in shards for a, b in block_ranges(s.tokens)]
        with open(data, "wb") as file:
            for block in cache.blocks(ranges):
                block.astype(dtype, copy=False).tofile(file)
        _write_index(index, filled, dtype)
        written = tuple(
            atomic.commit_file(path, f"{prefix}.{name}").url for path, name in ((data, "bin"), (index, "idx"))
        )
    return Exported((written[0], written[1]), len(filled), int(filled.sum()), len(lengths) - len(filled))


def _write_index(path: Path, lengths: np.ndarray, dtype: np.dtype) -> None:
    ends = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize
    pointers = ends - lengths * dtype.itemsize
    code = next(code for code, kind in TYPES.items() if np.dtype(kind) == dtype)
    with open(path, "wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
        lengths.astype("<i4").tofile(file)
        pointers.astype("<i8").tofile(file)
        np.arange(len(lengths) + 1, dtype="<i8").tofile(file)


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
