"""Compares every file of a token cache with its manifest, and document lengths with token counts; lists all damage.

Every byte is read, at the speed of the disk or the network; xxh3 takes 0.1 s of CPU time per GB. Damage does not stop
the comparison, so a single pass lists every damaged file. Without pyarrow, the lists of documents are checked only by
their checksums, not by their content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from datakit.cache.external_arrays import array_directory, read_external
from datakit.cache.layout import (
    DATA_FILE,
    DOCUMENTS_SUFFIX,
    LOSS_MASK_SUFFIX,
    METADATA_FILE,
    REMEDY,
    TOKENIZER_FILE,
    CacheDetails,
    ShardFiles,
)
from datakit.cache.lengths import LENGTHS_SUFFIX, TYPE, disagreement, lengths_bytes
from datakit.cache.reader import Cache
from datakit.errors import CorruptError, NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Manifest, Partition

READERS = 4
ReadList = Callable[[str], np.ndarray]
LISTS = (LENGTHS_SUFFIX, DOCUMENTS_SUFFIX)


@dataclass(frozen=True)
class CacheFile:
    """A file of a cache: its absolute URL, its size and its xxh3-128 hash (for the tokenizer, a sha256 hash)."""

    url: str
    bytes: int | None
    xxh3: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Damage:
    """A file that differs from what was written: its URL, the difference, and the remedy."""

    url: str
    difference: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        return f"{self.url} {self.difference}; {self.remedy}"


def cache_files(directory: str, manifest: Manifest, details: CacheDetails) -> Iterator[CacheFile]:
    """Yield every file of a cache except its manifest, including original files that an import left in place."""
    yield CacheFile(urls.join(directory, TOKENIZER_FILE), None, sha256=details.contract.tokenizer_sha256)
    external = read_external(directory, manifest)
    seen = set()
    for index, (partition, files) in enumerate(zip(manifest.partitions, details.shards, strict=True)):
        place = urls.join(directory, partition.path)
        yield CacheFile(place + DOCUMENTS_SUFFIX, files.documents_bytes, files.documents_xxh3)
        yield CacheFile(place + LENGTHS_SUFFIX, lengths_bytes(partition.rows), files.lengths_xxh3)
        if external is None:
            yield from _own_files(place, partition, files)
            continue
        array = array_directory(directory, external.shards[index])
        if array not in seen:
            seen.add(array)
            yield from (CacheFile(urls.join(array, f.path), f.bytes, f.xxh3) for f in external.shards[index].files)


def _own_files(place: str, partition: Partition, files: ShardFiles) -> Iterator[CacheFile]:
    if partition.tokens:
        yield CacheFile(urls.join(place, DATA_FILE), partition.bytes, partition.xxh3)
        yield CacheFile(urls.join(place, METADATA_FILE), files.metadata_bytes, files.metadata_xxh3)
        if files.loss_mask is not None:
            mask, place = files.loss_mask, place + LOSS_MASK_SUFFIX
            yield CacheFile(urls.join(place, DATA_FILE), mask.bytes, mask.xxh3)
            yield CacheFile(urls.join(place, METADATA_FILE), mask.metadata_bytes, mask.metadata_xxh3)


def find_damage(
    directory: str,
    manifest: Manifest,
    details: CacheDetails,
    progress: Callable[[int, int], None] = lambda files, size: None,
) -> tuple[int, list[Damage]]:
    """Compare every file with the manifest; return (bytes read, damage). Calls `progress` with the numbers of
    files and bytes compared so far.
    """
    files, total, damaged = list(cache_files(directory, manifest, details)), 0, []
    with ThreadPoolExecutor(READERS, thread_name_prefix="datakit-validate") as pool:
        for number, (size, damage) in enumerate(pool.map(_compare, files), start=1):
            total += size
            damaged += [damage] if damage is not None else []
            progress(number, total)
        broken = {damage.url for damage in damaged}
        shards = [(urls.join(directory, partition.path), partition) for partition in manifest.partitions]
        whole = [(place, shard) for place, shard in shards if not broken & {place + suffix for suffix in LISTS}]
        compare = partial(_compare_lists, read_list=_reader_of_lists())
        damaged += [damage for damage in pool.map(compare, whole) if damage is not None]
    return total, damaged


def require_intact(cache: Cache) -> int:
    """Compare all files of an open cache with its manifest, and return their total size. Raises CorruptError,
    which names the first damaged file.
    """
    total, damaged = find_damage(cache.directory, cache.manifest, cache.details)
    if damaged:
        more = f" (and {len(damaged) - 1} more: `datakit validate` lists them)" if len(damaged) > 1 else ""
        raise CorruptError(f"{damaged[0]}{more}")
    return total


def _compare(file: CacheFile) -> tuple[int, Damage | None]:
    """Compare one file with the manifest; return (bytes read, damage or None)."""
    try:
        if file.sha256 is not None:
            return _compare_tokenizer(file.url, file.sha256)
        found, size = atomic.hash_url(file.url)
    except NotFoundError:
        return 0, Damage(file.url, "is missing" + (f"; it had {file.bytes} bytes" if file.bytes is not None else ""))
    if size != file.bytes:
        return size, Damage(file.url, f"has {size} bytes; the manifest says {file.bytes}")
    if found != file.xxh3:
        return size, Damage(file.url, f"has the same size, but xxh3 {found}; the manifest says {file.xxh3}")
    return size, None


def _compare_lists(shard: tuple[str, Partition], read_list: ReadList | None) -> Damage | None:
    """Compare a shard's document lengths, from undamaged files, with its token count and its list of documents."""
    place, partition = shard
    data = urls.read_bytes(place + LENGTHS_SUFFIX)
    difference = disagreement(data, partition)
    listed = read_list(place + DOCUMENTS_SUFFIX) if read_list is not None and difference is None else None
    if listed is not None and not np.array_equal(listed, np.frombuffer(data, TYPE)):
        difference = f"and {place + DOCUMENTS_SUFFIX} list different document lengths"
    return Damage(place + LENGTHS_SUFFIX, difference) if difference is not None else None


def _reader_of_lists() -> ReadList | None:
    """Return a function that reads the lengths from a list of documents, or None if pyarrow is missing. This is called
    once rather than in each thread: if several threads import a module and the import fails, some of them may see a
    half-initialized module instead of the error.
    """
    try:
        from datakit.storage.parquet import read_shard
    except ModuleNotFoundError:
        return None
    return lambda url: read_shard(url, ["tokens"]).column("tokens").to_numpy()


def _compare_tokenizer(url: str, sha256: str) -> tuple[int, Damage | None]:
    data = urls.read_bytes(url)
    found = hashlib.sha256(data).hexdigest()
    if found == sha256:
        return len(data), None
    remedy = "restore the tokenizer.json that the cache was made with, or make the cache again"
    return len(data), Damage(url, f"has sha256 {found}; the cache was made with {sha256}", remedy)
