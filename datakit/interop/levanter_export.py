"""Exports a token cache as a cache of Levanter: a jagged array `input_ids` and a ledger (`docs/cache.md` describes
both). Every document becomes one row, even an empty one, and the tokens are int32, as in Levanter's own caches.

The ledger is written last, so an interrupted export is not a cache; exporting again goes on. Memory: a few MiB, and the
lengths of the documents of one shard.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from datakit.cache import zarr_arrays
from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import Cache
from datakit.errors import UsageError
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
from datakit.interop.levanter import CACHE_BYTES, FIELD, LEDGER
from datakit.interop.zarr_pieces import ArrayWriter, metadata
from datakit.storage import atomic, urls
from datakit.storage.stale_files import remove_dead_files

MOST = np.iinfo(np.int32).max
TOKENS, OFFSETS = "int32", "int64"


def export_levanter(
    cache: Cache, directory: str, source: str | None = None, *, drop_loss_mask: bool = False,
    progress: Progress = silent,
) -> Exported:  # fmt: skip
    """Write a cache, or one of its sources or document buckets, as a Levanter cache. Documents with loss masks are
    refused unless `drop_loss_mask` is true. Raises UsageError, CorruptError, and DivergentOutputError if the directory
    holds another export.
    """
    choice = choose(cache, source)
    refuse_loss_masks(choice, "Levanter", drop_loss_mask)
    if cache.contract.vocabulary_size > MOST:
        raise UsageError(f"{cache.directory}: the Levanter format cannot store ids above {MOST}")
    place, sent = urls.join(directory, FIELD), ContentDigest()
    remove_dead_files(directory)
    files = _write_tokens(choice, urls.join(place, "data"), sent, progress)
    files |= _write_offsets(choice, urls.join(place, "offsets"), sent)
    _refuse_others(directory, files)
    require_equal(directory, sent, _written(place, sent.documents), choice, 0)
    ledger = _ledger(choice, source or cache.manifest.dataset)
    atomic.commit_bytes(json.dumps(ledger, indent=1, sort_keys=True).encode() + b"\n", urls.join(directory, LEDGER))
    return Exported((directory,), sent.documents, sent.tokens, 0)


def _write_tokens(choice: Choice, place: str, sent: ContentDigest, progress: Progress) -> set[str]:
    ranges = ((s.token_start + a, s.token_start + b) for s in choice.shards for a, b in block_ranges(s.tokens))
    with ArrayWriter(place, TOKENS) as data:
        for block in choice.cache.blocks(ranges):
            sent.add_tokens(block)
            data.add(block.astype(TOKENS))
            progress(sent.tokens, choice.tokens, "tokens")
    return {f"{FIELD}/data/{path}" for path in data.files}


def _write_offsets(choice: Choice, place: str, sent: ContentDigest) -> set[str]:
    """Write the number of documents, and then the end of each of them."""
    end = 0
    with ArrayWriter(place, OFFSETS) as offsets:
        offsets.add(np.array([choice.documents], OFFSETS))
        for shard in choice.shards:
            lengths = choice.cache.document_lengths(shard.index).astype(np.int64)
            sent.add_lengths(lengths)
            offsets.add(end + np.cumsum(lengths))
            end += int(lengths.sum())
    return {f"{FIELD}/offsets/{path}" for path in offsets.files}


def _refuse_others(directory: str, files: set[str]) -> None:
    others = sorted({info.path for info in urls.listing(directory)} - files - {LEDGER})
    if others:
        raise UsageError(
            f"{directory} holds other files, such as {others[0]}, which do not belong to this export; export to an "
            "empty directory"
        )


def _written(place: str, documents: int) -> ContentDigest:
    """Read both arrays again, through TensorStore and from the files alone."""
    found = ContentDigest()
    offsets, data = (_open(urls.join(place, name), dtype) for name, dtype in (("offsets", OFFSETS), ("data", TOKENS)))
    end = 0
    count = int(_read(offsets, 0, 1)[0])
    for first, last in block_ranges(count):
        ends = _read(offsets, first + 1, last + 1)
        found.add_lengths(np.diff(ends, prepend=end))
        end = int(ends[-1])
    for first, last in block_ranges(end):
        found.add_tokens(_read(data, first, last))
    return found


def _open(directory: str, dtype: str) -> tuple[Any, str]:
    context = zarr_arrays.read_context(CACHE_BYTES, urls.is_local(directory))
    return zarr_arrays.open_array(directory, metadata(dtype), context, sparse=True), directory


def _read(array: tuple[Any, str], start: int, stop: int) -> np.ndarray:
    return zarr_arrays.finish(zarr_arrays.begin(array[0], start, stop), array[1])


def _ledger(choice: Choice, name: str) -> dict[str, Any]:
    contract = choice.cache.contract
    return {
        "total_num_rows": choice.documents,
        "shard_rows": {name: choice.documents},
        "is_finished": True,
        "finished_shards": [name],
        "field_counts": {FIELD: choice.tokens},
        "metadata": {
            "preprocessor_metadata": {
                "tokenizer_sha256": contract.tokenizer_sha256,
                "vocab_size": contract.vocabulary_size,
                "made_by": "datakit",
            }
        },
    }
