"""Exports a token cache in the MDS format of MosaicML Streaming, version 2, without that library (which needs PyTorch).

    index.json         the shards: number of samples, size, and the columns with their encodings
    shard.00000.mds    uint32 samples; uint32 begin of each sample and end of the last one; the columns as JSON; samples

A sample is a document with the columns `id` (str), `source` (str) and `tokens` (ndarray of uint16 or uint32) and, if
the cache has them, `loss_mask` (ndarray of uint8) and `bucket` (str, "" without one), in alphabetical order. It
consists of the size of each column, uint32, followed by the columns. An array begins with a byte (4 times the number of
axes, plus the code of the type of its shape) and its shape. The format has no empty arrays, so empty documents are left
out and counted.

A shard has at most SHARD_BYTES bytes, or a single longer document. index.json is written last. Memory: three to four
times the size of a shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.cache.lengths import starts_of
from datakit.cache.reader import Cache
from datakit.errors import CorruptError, UsageError
from datakit.interop.export import Choice, ContentDigest, Exported, Progress, choose, require_equal, silent
from datakit.storage import atomic, urls
from datakit.storage.stale_files import remove_dead_files

INDEX = "index.json"
FORMAT_VERSION = 2
SHARD_BYTES = 1 << 26  # the size that MDSWriter uses by default
MOST_BYTES = (1 << 32) - 1  # positions in a shard are uint32
SIZE = np.dtype("<u4")  # of the sizes and positions in a shard
TOKENS, MASK = "tokens", "loss_mask"
ID_BYTES = 32
SHAPES = ("<u1", "<u2", "<u4")  # the types of an array's shape, by their code
ONE_AXIS = 1 << 2


@dataclass(frozen=True)
class Columns:
    """The columns of all samples: encodings by name, in alphabetical order."""

    encodings: Mapping[str, str]

    @property
    def header(self) -> bytes:
        """The description of the columns in each shard."""
        return json.dumps(self._described(), sort_keys=True).encode()

    def entry(self, name: str, size: int, samples: int) -> dict[str, Any]:
        """Return the description of a shard in index.json."""
        raw = {"basename": name, "bytes": size, "hashes": {}}
        return {**self._described(), "raw_data": raw, "samples": samples, "version": FORMAT_VERSION, "zip_data": None}

    def _described(self) -> dict[str, Any]:
        return {
            "column_encodings": list(self.encodings.values()),
            "column_names": list(self.encodings),
            "column_sizes": [None] * len(self.encodings),
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": SHARD_BYTES,
        }


def columns_of(cache: Cache) -> Columns:
    """Return the columns with which a cache is exported."""
    found = {"id": "str", "source": "str", TOKENS: f"ndarray:{cache.contract.dtype.name}"}
    found |= {MASK: "ndarray:uint8"} if cache.has_loss_mask else {}
    found |= {"bucket": "str"} if cache.has_buckets else {}
    return Columns(dict(sorted(found.items())))


def export_mds(cache: Cache, directory: str, source: str | None = None, *, progress: Progress = silent) -> Exported:
    """Write a cache, or one of its sources or document buckets, as an MDS dataset in `directory`. Raises UsageError,
    CorruptError, and DivergentOutputError if the directory holds another export.
    """
    choice, columns, sent = choose(cache, source), columns_of(cache), ContentDigest()
    entries: list[dict[str, Any]] = []
    remove_dead_files(directory)
    for samples in _shards(choice, columns, sent, progress):
        name = f"shard.{len(entries):05d}.mds"
        content = _shard(samples, columns)
        atomic.commit_bytes(content, urls.join(directory, name))
        entries.append(columns.entry(name, len(content), len(samples)))
    if not entries:
        raise UsageError(f"{cache.directory} has no documents with tokens to export")
    _refuse_others(directory, {entry["raw_data"]["basename"] for entry in entries})
    empty = choice.documents - sent.documents
    require_equal(directory, sent, _written(directory, entries, columns), choice, empty)
    index = json.dumps({"version": FORMAT_VERSION, "shards": entries}, sort_keys=True).encode()
    atomic.commit_bytes(index, urls.join(directory, INDEX))
    return Exported((directory,), sent.documents, sent.tokens, empty)


def _refuse_others(directory: str, files: set[str]) -> None:
    others = sorted({info.path for info in urls.listing(directory)} - files - {INDEX})
    if others:
        raise UsageError(
            f"{directory} holds other files, such as {others[0]}, which do not belong to this export; export to an "
            "empty directory"
        )


@dataclass(frozen=True)
class Samples:
    """Encoded samples end to end, uint8, and their sizes in bytes, int64 [samples]."""

    data: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)


def _shards(choice: Choice, columns: Columns, sent: ContentDigest, progress: Progress) -> Iterator[Samples]:
    """Yield the samples of each shard."""
    room, waiting = SHARD_BYTES - len(columns.header) - 2 * SIZE.itemsize, list[Samples]()
    held = 0
    for batch in choice.cache.to_arrow(*choice.rows):
        encoded = _encode(batch, columns, sent)
        progress(sent.tokens, choice.tokens, "tokens")
        starts, costs, first = starts_of(encoded.sizes), starts_of(encoded.sizes + SIZE.itemsize), 0
        while first < len(encoded):
            last = int(np.searchsorted(costs, costs[first] + room - held, "right")) - 1
            last = max(last, first + (held == 0))  # a longer document is alone in its shard
            if last > first:
                waiting.append(Samples(encoded.data[starts[first] : starts[last]], encoded.sizes[first:last]))
                held += int(costs[last] - costs[first])
            if last < len(encoded):
                yield _joined(waiting)
                waiting, held = [], 0
            first = last
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Samples]) -> Samples:
    return Samples(np.concatenate([one.data for one in parts]), np.concatenate([one.sizes for one in parts]))


def _shard(samples: Samples, columns: Columns) -> bytearray:
    """Return the content of a shard. Raises UsageError if it is too large for the format."""
    header = columns.header
    begin = SIZE.itemsize * (len(samples) + 2) + len(header)
    if begin + len(samples.data) > MOST_BYTES:
        raise UsageError(f"a document of {len(samples.data):,} bytes is too long for the MDS format")
    positions = begin + starts_of(samples.sizes)
    content = bytearray(SIZE.type(len(samples)).tobytes())
    content += positions.astype(SIZE).tobytes()
    content += header
    content += samples.data.data
    return content


def _encode(batch: pa.RecordBatch, columns: Columns, sent: ContentDigest) -> Samples:
    """Encode the documents of a batch that have tokens."""
    batch = batch.filter(pa.array(np.asarray(batch[TOKENS].value_lengths()) > 0))
    parts = {name: _column(batch[name], encoding) for name, encoding in columns.encodings.items()}
    lengths = np.asarray(batch[TOKENS].value_lengths(), np.int64)
    sent.add(np.asarray(batch[TOKENS].flatten()), lengths, parts["id"].data.tobytes())
    sizes = np.stack([one.sizes for one in parts.values()], axis=1)
    heads = Samples(
        np.ascontiguousarray(sizes, SIZE).reshape(-1).view(np.uint8), np.full(len(sizes), SIZE.itemsize * len(parts))
    )
    return _interleaved([heads, *parts.values()])


def _column(values: Any, encoding: str) -> Samples:
    """Encode one column."""
    if encoding == "str":
        text = values.fill_null("").cast(pa.large_binary())
        offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
        data = np.frombuffer(text.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        return Samples(data, np.diff(offsets))
    dtype = np.dtype(encoding.partition(":")[2]).newbyteorder("<")
    lengths = np.asarray(values.value_lengths(), np.int64)
    flat = values.flatten()
    flat = flat.cast(pa.uint8()) if pa.types.is_boolean(flat.type) else flat
    bodies = Samples(np.ascontiguousarray(np.asarray(flat), dtype).view(np.uint8), lengths * dtype.itemsize)
    return _interleaved([_shapes(lengths), bodies])


def _shapes(lengths: np.ndarray) -> Samples:
    """Return the byte and the shape with which each array begins."""
    codes = np.searchsorted([1 << 8, 1 << 16], lengths, "right")
    widths = 1 << codes
    starts = starts_of(1 + widths)
    data = np.empty(int(starts[-1]), np.uint8)
    data[starts[:-1]] = ONE_AXIS | codes
    for code, kind in enumerate(SHAPES):
        chosen = codes == code
        places = starts[:-1][chosen][:, None] + 1 + np.arange(1 << code)
        data[places] = lengths[chosen].astype(kind).view(np.uint8).reshape(-1, 1 << code)
    return Samples(data, 1 + widths)


def _interleaved(parts: list[Samples]) -> Samples:
    """Return, for each row, the bytes of all parts one after another."""
    sizes = np.stack([one.sizes for one in parts], axis=1)
    total = int(sizes.sum())
    out = np.empty(total, np.uint8)
    owners = np.repeat(np.tile(np.arange(len(parts), dtype=np.uint8), len(sizes)), sizes.reshape(-1))
    for number, one in enumerate(parts):
        out[owners == number] = one.data
    return Samples(out, sizes.sum(axis=1))


def _written(directory: str, entries: list[dict[str, Any]], columns: Columns) -> ContentDigest:
    """Read all shards again, from their bytes alone."""
    found = ContentDigest()
    for entry in entries:
        place = urls.join(directory, entry["raw_data"]["basename"])
        data = np.frombuffer(urls.read_bytes(place), np.uint8)
        if len(data) != entry["raw_data"]["bytes"]:
            raise CorruptError(f"{place} has {len(data)} bytes, but {entry['raw_data']['bytes']} were written")
        _add_shard(data, columns, found)
    return found


def _add_shard(data: np.ndarray, columns: Columns, found: ContentDigest) -> None:
    (samples,) = data[: SIZE.itemsize].view(SIZE)
    positions = data[SIZE.itemsize : SIZE.itemsize * (int(samples) + 2)].view(SIZE).astype(np.int64)
    names = list(columns.encodings)
    heads = positions[:-1, None] + np.arange(SIZE.itemsize * len(names))
    sizes = data[heads].view(SIZE).astype(np.int64)
    begins = positions[:-1, None] + SIZE.itemsize * len(names) + np.cumsum(sizes, axis=1) - sizes
    ids = begins[:, names.index("id")][:, None] + np.arange(ID_BYTES)
    column = names.index(TOKENS)
    skipped = 1 + (1 << (data[begins[:, column]] & 3).astype(np.int64))
    starts, stops = begins[:, column] + skipped, begins[:, column] + sizes[:, column]
    dtype = np.dtype(columns.encodings[TOKENS].partition(":")[2]).newbyteorder("<")
    marks = np.zeros(len(data) + 1, np.int8)
    np.add.at(marks, starts, 1)
    np.add.at(marks, stops, -1)
    tokens = data[np.cumsum(marks[:-1], dtype=np.int8).astype(bool)].view(dtype)
    found.add(tokens, (stops - starts) // dtype.itemsize, data[ids].tobytes())
