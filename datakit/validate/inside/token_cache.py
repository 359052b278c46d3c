"""Compares the content of a token cache with its manifest: the lists of documents, the tokens and the loss masks.

Tokens are read in blocks of 1 Mi and decoded, to check that all ids are in the vocabulary, that documents begin and end
as the contract requires, that each array holds as many tokens as its documents have, and that loss masks have the
recorded sums. Without pyarrow, the content of the files `*.docs.parquet` is not compared, only their checksums.

Cost: decoding compressed tokens takes about 0.2 s of CPU time per 100 MB. Memory: a block for each thread, and the
lengths of a shard's documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from datakit.cache.layout import DATA_FILE, DOCUMENTS_SUFFIX, LOSS_MASK_SUFFIX, METADATA_FILE, REMEDY, length_histogram
from datakit.cache.lengths import LENGTHS_SUFFIX, TYPE, disagreement, starts_of
from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import Cache, Shard
from datakit.storage import urls
from datakit.storage.manifest import UNSEALED
from datakit.validate.finding import Result
from datakit.validate.subject import Subject, in_parallel, is_installed

LISTS = (LENGTHS_SUFFIX, DOCUMENTS_SUFFIX)
UNKNOWN = "the manifest contradicts itself"


def check_lists(step: Subject, result: Result) -> None:
    """Compare the two lists of each shard's documents (LISTS) with each other and with the manifest."""
    if step.details is None:
        return result.skip(UNKNOWN)
    read = is_installed("pyarrow")
    if not read:
        result.skip("pyarrow is not installed, so the files *.docs.parquet are only compared with their checksums")
    cache, found, whole = Cache(step.directory, step.manifest), Counter[str](), True
    for shard in cache.shards:
        place = step.url(shard.path)
        if not step.sound(*(place + suffix for suffix in LISTS)):
            result.skip("the lists of some shards are damaged")
            whole = False
            continue
        with result.reading(place + DOCUMENTS_SUFFIX, REMEDY):
            _compare_lists(step, shard, read, result)
            found.update(length_histogram(np.frombuffer(urls.read_bytes(place + LENGTHS_SUFFIX), TYPE)))
        result.count("document", shard.rows)
    if whole and not result.findings and found != Counter(cache.details.lengths):
        result.find(step.manifest_url, "has a histogram of lengths that differs from the documents'", REMEDY)
    return None


def _compare_lists(step: Subject, shard: Shard, read: bool, result: Result) -> None:
    place, partition = step.url(shard.path), step.manifest.partitions[shard.index]
    data = urls.read_bytes(place + LENGTHS_SUFFIX)
    difference = disagreement(data, partition)
    if difference is not None:
        return result.find(place + LENGTHS_SUFFIX, difference, REMEDY)
    if not read:
        return None
    lengths, ids = _document_list(place + DOCUMENTS_SUFFIX)
    if not np.array_equal(lengths, np.frombuffer(data, TYPE)):
        both = f"and {place + DOCUMENTS_SUFFIX} list different document lengths"
        return result.find(place + LENGTHS_SUFFIX, both, REMEDY)
    said = [partition.first_id, partition.last_id]
    if said != (ids or [None, None]):
        difference = (
            f"says that the ids of {shard.path} are from {said[0]} to {said[1]}; they are from {' to '.join(ids)}"
        )
        return result.find(step.manifest_url, difference, REMEDY)
    return None


def _document_list(url: str) -> tuple[np.ndarray, list[str]]:
    """Return the lengths of a shard's documents, and the ids of the first and the last one."""
    from datakit.storage.parquet import read_shard

    table = read_shard(url, ["id", "tokens"])
    ends = [0, table.num_rows - 1] if table.num_rows else []
    return table["tokens"].to_numpy(), table["id"].take(ends).to_pylist()


def check_tokens(step: Subject, result: Result) -> None:
    """Decode all tokens, and compare them with the contract and the lists of documents."""
    if step.details is None:
        return result.skip(UNKNOWN)
    cache = Cache(step.directory, step.manifest)
    whole = [shard for shard in cache.shards if step.sound(*_files(step.url(shard.path)))]
    if len(whole) < len(cache.shards):
        result.skip("the files of some shards are damaged")
    for shard, difference in zip(whole, in_parallel(partial(_token_difference, cache, result), whole), strict=True):
        result.count("token", shard.tokens)
        if difference:
            result.find(step.url(shard.path), difference, REMEDY)
    if step.manifest.format == UNSEALED:
        _find_stray_masks(step, result)
    return None


def _files(place: str) -> list[str]:
    arrays = (urls.join(place + kind, file) for kind in ("", LOSS_MASK_SUFFIX) for file in (DATA_FILE, METADATA_FILE))
    return [*arrays, *(place + suffix for suffix in LISTS)]


def _find_stray_masks(step: Subject, result: Result) -> None:
    """Find loss masks that a manifest of format 1 does not mention. The check `unlisted` does not find them, because
    in this format outputs share a directory with other files.
    """
    assert step.details is not None
    for partition, files in zip(step.manifest.partitions, step.details.shards, strict=True):
        mask = urls.join(step.url(partition.path) + LOSS_MASK_SUFFIX, METADATA_FILE)
        if files.loss_mask is None and urls.exists(mask):
            result.find(mask, "is not in the manifest", REMEDY)


def _token_difference(cache: Cache, result: Result, shard: Shard) -> str:
    """Return how a shard's tokens contradict the contract or the manifest, or ""."""
    found = [""]
    with result.reading(urls.join(cache.directory, shard.path), REMEDY):
        found.append(_compare_tokens(cache, shard, partial(_missing_end, cache, shard)))
    return found[-1]


def _compare_tokens(cache: Cache, shard: Shard, missing_end: Callable[[np.ndarray, int, np.ndarray], str]) -> str:
    contract, base, largest, targets = cache.contract, shard.token_start, 0, 0
    starts = starts_of(cache.document_lengths(shard.index))
    for first, last in block_ranges(shard.tokens):
        block = cache.read(base + first, base + last)
        largest = max(largest, int(block.max()))
        if difference := missing_end(block, first, starts):
            return difference
        if shard.files.loss_mask is not None:
            targets += int(cache.read_loss_mask(base + first, base + last).sum())
    if largest >= contract.vocabulary_size:
        return f"holds the id {largest}; the vocabulary has {contract.vocabulary_size} ids"
    if shard.files.loss_mask is not None and targets != shard.files.loss_mask.sum:
        return f"has {targets} targets; the manifest says {shard.files.loss_mask.sum}"
    return ""


def _missing_end(cache: Cache, shard: Shard, block: np.ndarray, first: int, starts: np.ndarray) -> str:
    """Return which special token a document of this block lacks, or ""."""
    contract = cache.contract
    for special, places in ((contract.bos, starts[:-1]), (contract.eos, starts[1:] - 1)):
        if special is None:
            continue
        inside = places[slice(*np.searchsorted(places, [first, first + len(block)]))] - first
        wrong = np.flatnonzero(block[inside] != special.id)
        if len(wrong):
            return f"holds a document without {special.token!r} ({special.id}) in {shard.path}"
    return ""
