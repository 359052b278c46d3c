"""Defines the token cache's file format (file names, chunk size, codecs, zarr.json, the manifest's details) and checks
a manifest for contradictions.

    manifest.json               shards in order, the contract, the arrays' form: all that is read on opening
    tokenizer.json              the tokenizer, byte for byte
    data/<source>/
      shard-00017/              a zarr 3 array in one `sharding_indexed` file, c/0
      shard-00017.docs.parquet  id and number of tokens (uint32): one row per document, in order
      shard-00017.lengths       the same lengths, raw: 4 bytes per document, readable without Arrow
      shard-00017.loss_mask/    the tokens that are targets, if the source marks them: uint8 0 or 1, same chunks

Shard 17 holds the documents of partition 17 of its source. If the source is divided into document buckets, its shards
are in `data/<source>/<bucket>/` instead: first all shards of one bucket, then those of the next. Shard 17 of a bucket
holds the documents of partition 17 that are in the bucket. A partition without documents has no shard, and a shard
whose documents have no tokens has no array. A shard's array is cut into equal chunks of at most 256 Ki tokens. Reading
a block of 1 Mi tokens through TensorStore therefore takes about five requests; a small shard is not padded to a full
chunk (512 KiB in uint16); and a large shard has at most one token of padding per chunk. If all ids of the vocabulary
fit in uint16, ids are stored as uint16 without compression: blosc would save only 3 % and reduce the read rate by a
third. Otherwise, ids are stored as uint32 and compressed with blosc-lz4-bitshuffle, which halves the size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from datakit.cache.contract import Contract
from datakit.errors import CorruptError, UsageError
from datakit.storage.fingerprint import fingerprint
from datakit.storage.manifest import Manifest, Partition, data_path, manifest_url, require_not_newer

STAGE = "tokenize"
FORMAT = "datakit.cache/2"
CHUNK_TOKENS = 1 << 18
DATA_FILE = "c/0"
METADATA_FILE = "zarr.json"
TOKENIZER_FILE = "tokenizer.json"
DOCUMENTS_SUFFIX = ".docs.parquet"
LOSS_MASK_SUFFIX = ".loss_mask"
REMEDY = "if this is a copy, copy the cache again; otherwise remove its directory and make it again (`datakit run`)"
FREQUENT = 32  # the manifest lists at most this many of the most frequent tokens
FREQUENT_IN_SHARD = 128  # at most this many of each shard's most frequent tokens are candidates for that list

LITTLE_ENDIAN: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC: dict[str, Any] = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0},
}


class ArrayForm(msgspec.Struct, frozen=True):
    """The data type, chunk size and codecs of all token arrays of a cache, or of all its loss masks."""

    dtype: str
    chunk_tokens: int
    codecs: list[dict[str, Any]]

    def metadata(self, tokens: int) -> dict[str, Any]:
        """Return the zarr.json of an array of `tokens` tokens (at least one)."""
        chunks = -(-tokens // self.chunk_tokens)
        chunk = -(-tokens // chunks)
        sharding = {
            "chunk_shape": [chunk],
            "codecs": self.codecs,
            "index_codecs": [LITTLE_ENDIAN, {"name": "crc32c"}],
            "index_location": "end",
        }
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [tokens],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk * chunks]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }


def array_form(dtype: np.dtype) -> ArrayForm:
    if dtype.itemsize == 1:  # a loss mask: it needs no shuffling, since it has long runs of equal values
        configuration = {**BLOSC["configuration"], "typesize": 1, "shuffle": "noshuffle"}
        return ArrayForm(
            dtype.name, CHUNK_TOKENS, [{"name": "bytes"}, {"name": "blosc", "configuration": configuration}]
        )
    codecs: list[dict[str, Any]] = [LITTLE_ENDIAN] if dtype == np.uint16 else [LITTLE_ENDIAN, BLOSC]
    return ArrayForm(dtype.name, CHUNK_TOKENS, codecs)


class SideFiles(msgspec.Struct, frozen=True):
    """The sizes and checksums of a loss mask's two files, and the sum of its values (the number of targets)."""

    bytes: int
    xxh3: str
    metadata_bytes: int
    metadata_xxh3: str
    sum: int


class ShardFiles(msgspec.Struct, frozen=True):
    """The sizes and checksums of a shard's files, except the data file, which the manifest's `partitions` describe.

    lengths_xxh3: the checksum of the lengths file. loss_mask: None if the shard has none (every token is a target).
    """

    metadata_bytes: int
    metadata_xxh3: str
    documents_bytes: int
    documents_xxh3: str
    lengths_xxh3: str
    loss_mask: SideFiles | None = None


class SourceSums(msgspec.Struct, frozen=True):
    """Totals of a source. targets: the number of targets; None if all tokens are. frequent: as in CacheDetails; left
    out of the `repr`, as it may hold dozens of pairs.
    """

    shards: int
    documents: int
    tokens: int
    text_bytes: int
    targets: int | None = None
    frequent: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name != "frequent")
        return f"SourceSums({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class CacheDetails(msgspec.Struct, frozen=True):
    """The value of `details` in the manifest of a cache.

    shards: one entry per shard, in the order of the manifest's `partitions`. lengths: for each key, the number of
    documents whose length is less than the key and at least half of it (for key "1", the number of documents without
    tokens). frequent: the most frequent tokens, as pairs (id, count). A token is counted only in shards where it is
    among the FREQUENT_IN_SHARD most frequent tokens, so a count is exact or slightly too low. loss_mask: the form of
    the mask arrays; None if there are none.
    """

    format: str
    contract: Contract
    array: ArrayForm
    shards: list[ShardFiles]
    sources: dict[str, SourceSums]
    lengths: dict[str, int]
    frequent: list[tuple[int, int]] = []
    loss_mask: ArrayForm | None = None


def read_details(directory: str, manifest: Manifest) -> CacheDetails:
    """Return the manifest's `details` after checking that they agree with the rest of the manifest. This check runs
    whenever a cache is opened, and it reads no file. `datakit validate` compares the files with the manifest. Raises
    UsageError for the output of another stage, NewerFormatError for a cache that a newer version wrote, and
    CorruptError for a contradiction or an unknown format.
    """
    if manifest.stage != STAGE:
        raise UsageError(f"{directory} is the output of stage {manifest.stage!r}, not a token cache")
    form = manifest.details.get("format")
    if form is not None and form != FORMAT:
        require_not_newer(str(form), manifest_url(directory), FORMAT)
        raise CorruptError(
            f"{directory} has format {form!r}, but this version of datakit reads {FORMAT!r}; make the cache again "
            f"(with `datakit run` or `datakit cache import`), or read it with the version that made it"
        )
    try:
        details = msgspec.convert(manifest.details, CacheDetails)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{directory}: its manifest does not describe a token cache: {error}") from error
    if min(form.chunk_tokens for form in (details.array, details.loss_mask) if form is not None) < 1:
        raise CorruptError(f"{directory}: its manifest states a chunk size below 1, so it was altered; {REMEDY}")
    if any(not 0 <= token < details.contract.vocabulary_size for token, _ in details.frequent):
        raise CorruptError(
            f"{directory}: its manifest lists a frequent token outside the vocabulary, so it was altered; {REMEDY}"
        )
    for what, one, other in _sums(manifest, details):
        if one != other:
            raise CorruptError(
                f"{directory}: two values in its manifest disagree ({what}: {one} and {other}), so the manifest was "
                f"altered; {REMEDY}"
            )
    return details


def _sums(manifest: Manifest, details: CacheDetails) -> Iterator[tuple[str, object, object]]:
    """Yield (name, value, value): two values in the manifest that must be equal, and a name for both."""
    partitions, sources = manifest.partitions, details.sources.values()
    tokens = sum(partition.tokens or 0 for partition in partitions)
    rows = sum(partition.rows for partition in partitions)
    yield "tokens in the shards and in total", tokens, manifest.totals.tokens
    yield "documents in the shards and in total", rows, manifest.totals.rows
    yield "tokens in the shards and in the sources", tokens, sum(entry.tokens for entry in sources)
    yield "documents in the shards and in the sources", rows, sum(entry.documents for entry in sources)
    yield "documents in the shards and in the histogram of lengths", rows, sum(details.lengths.values())
    yield "number of shards and of descriptions of their files", len(partitions), len(details.shards)
    yield "type of the ids and of the arrays", details.contract.dtype.name, details.array.dtype
    computed = _source_sums(manifest.partitions, details.shards)
    for source in [*computed, *(name for name in details.sources if name not in computed)]:
        claimed = details.sources.get(source)
        sums = claimed and (claimed.shards, claimed.documents, claimed.tokens, claimed.text_bytes, claimed.targets)
        yield f"shards, documents, tokens, bytes of text and targets of {source!r}", computed.get(source), sums
    masked = any(files.loss_mask is not None for files in details.shards)
    yield "loss masks of the shards and their form", masked, details.loss_mask is not None


def _source_sums(partitions: Sequence[Partition], files: Sequence[ShardFiles]) -> dict[str, tuple[int | None, ...]]:
    """Return (shards, documents, tokens, text bytes, targets) per source; targets is None if all tokens are targets."""
    by_source: dict[str, list[tuple[Partition, ShardFiles]]] = {}
    for partition, entry in zip(partitions, files, strict=False):
        by_source.setdefault(partition.source, []).append((partition, entry))
    sums: dict[str, tuple[int | None, ...]] = {}
    for source, shards in by_source.items():
        targets = sum(entry.loss_mask.sum if entry.loss_mask else part.tokens or 0 for part, entry in shards)
        parts, masked = [part for part, _ in shards], any(entry.loss_mask for _, entry in shards)
        counts = (sum(part.rows for part in parts), sum(part.tokens or 0 for part in parts))
        text_bytes = sum(part.text_bytes or 0 for part in parts)
        sums[source] = (len(shards), *counts, text_bytes, targets if masked else None)
    return sums


def shard_name(source: str, partition: int, bucket: str | None = None) -> str:
    """Return a shard's path in the cache, such as `data/web/shard-00017` or, for the documents of one bucket,
    `data/web/high/shard-00017`.
    """
    name = f"shard-{partition:05d}"
    return data_path(source, name if bucket is None else f"{bucket}/{name}")


def part_name(source: str, bucket: str | None) -> str:
    """Return the name by which mixtures read the documents of a source or of one of its document buckets."""
    return source if bucket is None else f"{source}.{bucket}"


def content_of(partitions: Sequence[Partition]) -> str:
    """Return a hash of all shards' paths, checksums and numbers of tokens. This hash identifies an imported cache."""
    return fingerprint("content", 1, {}, [f"{shard.path} {shard.xxh3} {shard.tokens}" for shard in partitions])


def length_histogram(lengths: np.ndarray) -> dict[str, int]:
    """Count documents by length, in ranges bounded by powers of two, as in `CacheDetails.lengths`.

    >>> length_histogram(np.array([0, 1, 2, 3, 4]))
    {'1': 1, '2': 1, '4': 2, '8': 1}
    """
    _, exponents = np.frexp(lengths.astype(np.float64))
    powers, counts = np.unique(exponents, return_counts=True)
    return {str(1 << int(power)): int(count) for power, count in zip(powers, counts, strict=True)}


def most_frequent(counts: np.ndarray, number: int) -> dict[str, int]:
    """Return {id: count} for the `number` most frequent tokens, the most frequent first.

    `counts[id]`, int64, is the count of token `id`. Tokens with equal counts are ordered by id. Tokens that do not
    occur are left out.

    >>> most_frequent(np.array([5, 0, 7, 5]), 2)
    {'2': 7, '0': 5}
    """
    chosen = np.flatnonzero(counts)
    if len(chosen) > number:  # `partition` is 20 times slower with the zeros of a large vocabulary (measured)
        least = np.partition(counts[chosen], len(chosen) - number)[len(chosen) - number]
        chosen = np.flatnonzero(counts >= least)
    order = np.argsort(-counts[chosen], kind="stable")[:number]
    return {str(token): int(counts[token]) for token in chosen[order]}
