"""Reads tokens and loss masks from shards (raw local files directly, all others through TensorStore), checks file
sizes, and keeps recently used arrays open. A range of a raw shard on a local disk is read straight into the result, by
a single system call. TensorStore reads everything else, such as compressed shards, loss masks and shards in object
stores. If the file of a local shard is missing or does not have the size that the manifest gives, the shard is refused
when it is opened. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from datakit.cache import zarr_arrays
from datakit.cache.external_arrays import ExternalShard, ExternalShards, array_directory, read_external
from datakit.cache.layout import DATA_FILE, LOSS_MASK_SUFFIX, REMEDY, CacheDetails
from datakit.cache.lru import LruCache
from datakit.cache.raw_shard import RawShard, open_raw
from datakit.cache.shard_offsets import Stretch
from datakit.errors import CorruptError, NotFoundError, TokenizerError
from datakit.storage import urls
from datakit.storage.manifest import Manifest

# Maximum number of arrays kept open. Each raw array takes a file descriptor, and a process often has only 1024 of them.
OPEN_ARRAYS = 256


class ShardArrays:
    """The arrays of one cache's shards, each opened on first use."""

    def __init__(self, directory: str, manifest: Manifest, details: CacheDetails, cache_bytes: int) -> None:
        self._directory, self._partitions, self._details = directory, manifest.partitions, details
        self._external: ExternalShards | None = read_external(directory, manifest)
        self._dtype = details.contract.dtype
        self._local = urls.is_local(directory)
        self._context = zarr_arrays.read_context(cache_bytes, self._local)
        self._open = LruCache[tuple[int, bool], Any](OPEN_ARRAYS)
        self._direct_reads = 0
        self._before = zarr_arrays.requests_so_far()

    @property
    def requests(self) -> int:
        """The number of reads since the cache was opened, including TensorStore's reads for other caches."""
        return self._direct_reads + zarr_arrays.requests_so_far() - self._before

    def read(self, stretches: Sequence[Stretch]) -> np.ndarray:
        """Return the tokens of the stretches, end to end. TensorStore's reads run concurrently."""
        out = np.empty(sum(last - first for _, first, last in stretches), self._dtype)
        pending, position = [], 0
        for index, first, last in stretches:
            array, place = self._array(index), out[position : position + last - first]
            position += len(place)
            if isinstance(array, RawShard):
                array.read_into(first, place)
                self._direct_reads += 1
            else:
                pending += [(index, *begun) for begun in _begin(array, first, place)]
        for index, place, read in pending:
            place[:] = self._checked(zarr_arrays.finish(read, self.place(index)), index)
        return out

    def read_loss_mask(self, stretches: Sequence[Stretch]) -> np.ndarray:
        """Return the loss masks of the stretches, end to end: bool [tokens]; all True for a shard without a mask."""
        out = np.ones(sum(last - first for _, first, last in stretches), bool)
        pending, position = [], 0
        for index, first, last in stretches:
            place = out[position : position + last - first]
            position += len(place)
            if self._details.shards[index].loss_mask is not None:
                pending += [(index, *begun) for begun in _begin(self._array(index, masks=True), first, place)]
        for index, place, read in pending:
            place[:] = zarr_arrays.finish(read, self.place(index) + LOSS_MASK_SUFFIX)
        return out

    def view(self, index: int) -> np.ndarray | None:
        """Return a shard's tokens as a memory map if they are stored raw on a local disk, otherwise None."""
        array = self._array(index)
        return array.view() if isinstance(array, RawShard) else None

    def place(self, index: int) -> str:
        if self._external is not None:
            return array_directory(self._directory, self._external.shards[index])
        return urls.join(self._directory, self._partitions[index].path)

    def _array(self, index: int, masks: bool = False) -> Any:
        return self._open.get((index, masks), lambda: self._opened_mask(index) if masks else self._opened(index))

    def _opened(self, index: int) -> Any:
        if self._external is not None:
            return self._opened_external(self._external.shards[index], self._external)
        place, partition = self.place(index), self._partitions[index]
        assert partition.tokens is not None
        metadata = self._details.array.metadata(partition.tokens)
        if self._local:
            data = urls.join(place, DATA_FILE)
            _check_size(data, partition.bytes)
            raw = open_raw(urls.local_path(data), metadata)
            if raw is not None:
                return raw
        return zarr_arrays.open_array(place, metadata, self._context)

    def _opened_external(self, shard: ExternalShard, external: ExternalShards) -> Any:
        place = array_directory(self._directory, shard)
        if urls.is_local(place):
            for file in shard.files:
                _check_size(urls.join(place, file.path), file.bytes)
        return zarr_arrays.open_array(place, external.forms[shard.form], self._context, sparse=True)

    def _opened_mask(self, index: int) -> Any:
        place, files = self.place(index) + LOSS_MASK_SUFFIX, self._details.shards[index].loss_mask
        assert files is not None
        assert self._details.loss_mask is not None
        if self._local:
            _check_size(urls.join(place, DATA_FILE), files.bytes)
        metadata = self._details.loss_mask.metadata(self._partitions[index].tokens or 0)
        return zarr_arrays.open_array(place, metadata, self._context)

    def _checked(self, found: np.ndarray, index: int) -> np.ndarray:
        """Return the ids in `found`; raise TokenizerError if an imported shard has an id outside the vocabulary."""
        if self._external is None:
            return found
        size = self._details.contract.vocabulary_size
        if len(found) and (int(found.min()) < 0 or int(found.max()) >= size):
            wrong = int(found.max()) if found.min() >= 0 else int(found.min())
            raise TokenizerError(
                f"{self.place(index)} holds the id {wrong}, but the tokenizer given at import has {size} ids; "
                f"import the array again with the tokenizer that made these tokens"
            )
        return found


def _begin(array: Any, first: int, place: np.ndarray) -> list[tuple[np.ndarray, Any]]:
    """Start reading `len(place)` values of the array from position `first` on. Return a pair for each read: a part of
    `place`, and TensorStore's future for the values that the caller is to copy into this part. One read per chunk
    gives 1.5 times the rate of a single read, because TensorStore decodes each read in a single thread.
    """
    last, (chunk,) = first + len(place), array.chunk_layout.read_chunk.shape
    cuts = [first, *range((first // chunk + 1) * chunk, last, chunk), last]
    return [
        (place[start - first : stop - first], zarr_arrays.begin(array, start, stop)) for start, stop in pairwise(cuts)
    ]


def _check_size(url: str, expected: int) -> None:
    """Raise CorruptError if a local file is missing or has the wrong size.
    Objects in an object store are not checked, because the checksum of the index at an object's end reveals truncation.
    """
    try:
        size = urls.size(url)
    except NotFoundError as error:
        raise CorruptError(f"{url} is missing; {REMEDY}") from error
    if size != expected:
        raise CorruptError(
            f"{url} has {size} bytes, but the manifest says {expected}, so it was altered after it was written; "
            f"{REMEDY}"
        )
