"""Compares a token cache with its manifest: every file, the contract, and each shard's documents and tokens; lists all
damage.

Every file is read once to compute its checksum. If no damage is found, the tokens are read again and decoded, to check
that all ids are in the vocabulary, that documents begin and end as the contract requires, and that loss masks have the
recorded sums. Without pyarrow, the content of the files `*.docs.parquet` is not compared, only their checksums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    length_histogram,
)
from datakit.cache.lengths import LENGTHS_SUFFIX, TYPE, disagreement, lengths_bytes, starts_of
from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import Cache, Shard
from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.manifest import UNSEALED, Manifest, Partition, manifest_url
from datakit.validate.contract_claims import contract_damage
from datakit.validate.files import READERS, Damage, DescribedFile, Progress, compare_files
from datakit.validate.manifest_claims import manifest_damage, undescribed_files

# URL of a list of documents -> (the length of each document in tokens, the ids of the first and the last document)
ReadList = Callable[[str], tuple[np.ndarray, list[str]]]
LISTS = (LENGTHS_SUFFIX, DOCUMENTS_SUFFIX)
TOKENIZER_REMEDY = "copy the tokenizer.json with which the cache was made, or make the cache again"


def cache_files(directory: str, manifest: Manifest, details: CacheDetails) -> Iterator[DescribedFile]:
    """Yield every file of a cache except its manifest, including original files that an import left in place."""
    tokenizer, sha256 = urls.join(directory, TOKENIZER_FILE), details.contract.tokenizer_sha256
    yield DescribedFile(tokenizer, None, sha256=sha256, remedy=TOKENIZER_REMEDY)
    for file in manifest.files:
        yield DescribedFile(urls.join(directory, file.path), file.bytes, file.xxh3, remedy=REMEDY)
    external = read_external(directory, manifest)
    seen = set()
    for index, (partition, files) in enumerate(zip(manifest.partitions, details.shards, strict=True)):
        place = urls.join(directory, partition.path)
        yield _own(place + DOCUMENTS_SUFFIX, files.documents_bytes, files.documents_xxh3)
        yield _own(place + LENGTHS_SUFFIX, lengths_bytes(partition.rows), files.lengths_xxh3)
        if external is None:
            yield from _own_arrays(place, partition, files)
            continue
        place = array_directory(directory, external.shards[index])
        if place not in seen:
            seen.add(place)
            yield from (_own(urls.join(place, f.path), f.bytes, f.xxh3) for f in external.shards[index].files)


def _own(url: str, size: int, xxh3: str) -> DescribedFile:
    return DescribedFile(url, size, xxh3, remedy=REMEDY)


def _own_arrays(place: str, partition: Partition, files: ShardFiles) -> Iterator[DescribedFile]:
    if partition.tokens:
        yield _own(urls.join(place, DATA_FILE), partition.bytes, partition.xxh3)
        yield _own(urls.join(place, METADATA_FILE), files.metadata_bytes, files.metadata_xxh3)
        if files.loss_mask is not None:
            mask, place = files.loss_mask, place + LOSS_MASK_SUFFIX
            yield _own(urls.join(place, DATA_FILE), mask.bytes, mask.xxh3)
            yield _own(urls.join(place, METADATA_FILE), mask.metadata_bytes, mask.metadata_xxh3)


def find_damage(
    directory: str, manifest: Manifest, details: CacheDetails, progress: Progress = lambda files, size: None
) -> tuple[int, list[Damage]]:
    """Compare every file with the manifest, and check the manifest's statements; return (number of bytes read, damage).
    Calls `progress` with the numbers of files and bytes compared so far.
    """
    files = list(cache_files(directory, manifest, details))
    total, damaged = compare_files(files, progress)
    broken = {damage.url for damage in damaged}
    damaged += manifest_damage(directory, manifest)
    damaged += _undescribed(directory, manifest, details, {file.url for file in files})
    if urls.join(directory, TOKENIZER_FILE) not in broken:
        damaged += contract_damage(directory, manifest, details)
    cache = Cache(directory, manifest)
    places = [urls.join(directory, partition.path) for partition in manifest.partitions]
    with ThreadPoolExecutor(READERS, thread_name_prefix="datakit-validate") as pool:
        whole = [shard for shard, place in zip(cache.shards, places, strict=True)
                 if not broken & {place + suffix for suffix in LISTS}]  # fmt: skip
        compare = partial(_compare_lists, cache, read_list=_reader_of_lists())
        damaged += [damage for damage in pool.map(compare, whole) if damage is not None]
        if not damaged:  # a wrong contract would be reported for every shard, and damaged files cannot be decoded
            damaged += [damage for damage in pool.map(partial(_compare_tokens, cache), whole) if damage is not None]
            damaged += _compare_histogram(cache)
    return total, damaged


def require_intact(cache: Cache) -> int:
    """Compare all files of an open cache with its manifest, and return their total size in bytes. Raises CorruptError
    if there is any damage; the error names the first damaged file.
    """
    total, damaged = find_damage(cache.directory, cache.manifest, cache.details)
    if damaged:
        more = f" (and {len(damaged) - 1} more: `datakit validate` lists them)" if len(damaged) > 1 else ""
        raise CorruptError(f"{damaged[0]}{more}")
    return total


def _undescribed(directory: str, manifest: Manifest, details: CacheDetails, described: set[str]) -> Iterator[Damage]:
    """Yield a Damage for each file that no entry of the manifest describes, such as a loss mask without an entry.

    In a cache of manifest format 1, the outputs share the step's directory with other files, so the only undescribed
    files that can be recognized are loss masks.
    """
    yield from undescribed_files(directory, described)
    for partition, files in zip(manifest.partitions, details.shards, strict=True):
        mask = urls.join(directory, partition.path + LOSS_MASK_SUFFIX, METADATA_FILE)
        if manifest.format == UNSEALED and files.loss_mask is None and urls.exists(mask):
            yield Damage(mask, "is not in the manifest", REMEDY)


def _compare_lists(cache: Cache, shard: Shard, read_list: ReadList | None) -> Damage | None:
    """Return a Damage if a shard's two document lists, whose files must be undamaged, differ from each other or from
    the manifest.
    """
    place, partition = urls.join(cache.directory, shard.path), cache.manifest.partitions[shard.index]
    data = urls.read_bytes(place + LENGTHS_SUFFIX)
    difference = disagreement(data, partition)
    if difference is not None or read_list is None:
        return Damage(place + LENGTHS_SUFFIX, difference, REMEDY) if difference is not None else None
    lengths, ids = read_list(place + DOCUMENTS_SUFFIX)
    if not np.array_equal(lengths, np.frombuffer(data, TYPE)):
        difference = f"and {place + DOCUMENTS_SUFFIX} list different document lengths"
        return Damage(place + LENGTHS_SUFFIX, difference, REMEDY)
    said = [partition.first_id, partition.last_id]
    if said != (ids or [None, None]):
        difference = (
            f"says that the ids of {shard.path} are from {said[0]} to {said[1]}; they are from {' to '.join(ids)}"
        )
        return Damage(manifest_url(cache.directory), difference, REMEDY)
    return None


def _reader_of_lists() -> ReadList | None:
    """Return a function that reads a list of documents, or None if pyarrow is missing. Call this once rather than in
    each thread: if several threads import a module and the import fails, some of them may see a half-initialized module
    instead of the error.
    """
    try:
        from datakit.storage.parquet import read_shard
    except ModuleNotFoundError:
        return None

    def read(url: str) -> tuple[np.ndarray, list[str]]:
        table = read_shard(url, ["id", "tokens"])
        ends = [0, table.num_rows - 1] if table.num_rows else []
        return table["tokens"].to_numpy(), table["id"].take(ends).to_pylist()

    return read


def _compare_tokens(cache: Cache, shard: Shard) -> Damage | None:
    """Return a Damage if an id is not in the vocabulary, if a document does not begin and end as the contract requires,
    or if the loss mask does not have the recorded sum.
    """
    contract, base = cache.contract, shard.token_start
    starts = starts_of(cache.document_lengths(shard.index))
    expected = [(special, places) for special, places in ((contract.bos, starts[:-1]), (contract.eos, starts[1:] - 1))
                if special is not None]  # fmt: skip
    largest = targets = 0
    for first, last in block_ranges(shard.tokens):
        block = cache.read(base + first, base + last)
        largest = max(largest, int(block.max()))
        for special, places in expected:
            inside = places[slice(*np.searchsorted(places, [first, last]))] - first
            if not (block[inside] == special.id).all():
                return _shard_damage(cache, shard, f"holds a document without {special.token!r} ({special.id})")
        if shard.files.loss_mask is not None:
            targets += int(cache.read_loss_mask(base + first, base + last).sum())
    if largest >= contract.vocabulary_size:
        return _shard_damage(cache, shard, f"holds the id {largest}; the vocabulary has {contract.vocabulary_size} ids")
    if shard.files.loss_mask is not None and targets != shard.files.loss_mask.sum:
        return _shard_damage(cache, shard, f"has {targets} targets; the manifest says {shard.files.loss_mask.sum}")
    return None


def _shard_damage(cache: Cache, shard: Shard, difference: str) -> Damage:
    return Damage(urls.join(cache.directory, shard.path), difference, REMEDY)


def _compare_histogram(cache: Cache) -> list[Damage]:
    found = Counter[str]()
    for shard in cache.shards:
        found.update(length_histogram(cache.document_lengths(shard.index)))
    if found == Counter(cache.details.lengths):
        return []
    return [
        Damage(manifest_url(cache.directory), "has a histogram of lengths that differs from the documents'", REMEDY)
    ]
