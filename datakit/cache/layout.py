"""The token cache's format: what its manifest says, and what each shard's zarr.json is. No data passes here.

    manifest.json                     shards in order, the contract, the array's form: all that opening needs
    tokenizer.json                    the tokenizer, byte for byte
    <source>/shard-00017/             zarr3, one array of one `sharding_indexed` file, c/0
    <source>/shard-00017.docs.parquet id, tokens (uint32): one row a document, in order
    <source>/shard-00017.lengths      the same lengths once more, raw: 4 bytes a document, and no Arrow to read them
    <source>/shard-00017.loss_mask/   where a source says which tokens are targets: uint8 0 or 1, on the same chunk grid

Shard 17 holds the documents of partition 17 of its source; a partition without documents has no shard, and a shard
whose documents have no tokens has no array. A shard's array is cut into equal chunks of at most 256 Ki tokens: a block
of 1 Mi tokens is about five requests, a small shard carries no padding (a full chunk of uint16 is 512 KiB), and a large
one at most a token a chunk. Raw uint16 where the vocabulary fits it, for blosc would save 3 % of those and cost a third
of the read rate; else uint32 under blosc-lz4-bitshuffle, half the size.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from datakit.cache.contract import Contract

STAGE = "tokenize"
FORMAT = "datakit.cache/2"
CHUNK_TOKENS = 1 << 18
DATA_FILE = "c/0"
METADATA_FILE = "zarr.json"
TOKENIZER_FILE = "tokenizer.json"
DOCUMENTS_SUFFIX = ".docs.parquet"
LOSS_MASK = "loss_mask"
LOSS_MASK_SUFFIX = ".loss_mask"
FREQUENT = 32  # tokens that the manifest lists
FREQUENT_IN_SHARD = 128  # tokens of each shard among which these are looked for

LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0},
}


class ArrayForm(msgspec.Struct, frozen=True):
    """What all arrays of a cache have in common."""

    dtype: str
    chunk_tokens: int
    codecs: list[dict[str, Any]]

    def metadata(self, tokens: int) -> dict[str, Any]:
        """The zarr.json of a shard of this many tokens (at least one)."""
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
    """The form for ids of this type."""
    if dtype.itemsize == 1:  # a mask: long runs
        configuration = {**BLOSC["configuration"], "typesize": 1, "shuffle": "noshuffle"}
        return ArrayForm(
            dtype.name, CHUNK_TOKENS, [{"name": "bytes"}, {"name": "blosc", "configuration": configuration}]
        )
    codecs: list[dict[str, Any]] = [LITTLE_ENDIAN] if dtype == np.uint16 else [LITTLE_ENDIAN, BLOSC]
    return ArrayForm(dtype.name, CHUNK_TOKENS, codecs)


class SideFiles(msgspec.Struct, frozen=True):
    """Size and checksum of the two files of an array beside a shard's tokens, and the sum of its values."""

    bytes: int
    xxh3: str
    metadata_bytes: int
    metadata_xxh3: str
    sum: int


class ShardFiles(msgspec.Struct, frozen=True):
    """Size and checksum of a shard's files beside the data file, which its partition describes.

    lengths_xxh3: of the file of lengths; its size is 4 bytes a document. loss_mask: None where every token is a target.
    """

    metadata_bytes: int
    metadata_xxh3: str
    documents_bytes: int
    documents_xxh3: str
    lengths_xxh3: str
    loss_mask: SideFiles | None = None


class SourceSums(msgspec.Struct, frozen=True):
    """What one source contributes."""

    shards: int
    documents: int
    tokens: int
    text_bytes: int
    targets: int | None = None  # tokens that the loss counts; None: all
    frequent: list[tuple[int, int]] = []  # see CacheDetails


class CacheDetails(msgspec.Struct, frozen=True):
    """`details` in the manifest of a cache.

    shards: one entry a partition, in the same order. lengths: how many documents have fewer tokens than the key and at
    least half of it (1: none at all). frequent: the most frequent tokens, (id, how often): counted where a token is
    among the FREQUENT_IN_SHARD most frequent of its shard, so a count is exact or a little low.
    loss_mask: the form of these arrays, None where no shard has one.
    """

    format: str
    contract: Contract
    array: ArrayForm
    shards: list[ShardFiles]
    sources: dict[str, SourceSums]
    lengths: dict[str, int]
    frequent: list[tuple[int, int]] = []
    loss_mask: ArrayForm | None = None


def shard_name(source: str, partition: int) -> str:
    """`web/shard-00017`."""
    return f"{source}/shard-{partition:05d}"


def length_histogram(lengths: np.ndarray) -> dict[str, int]:
    """Documents by length in powers of two, as `CacheDetails.lengths` says.

    >>> length_histogram(np.array([0, 1, 2, 3, 4]))
    {'1': 1, '2': 1, '4': 2, '8': 1}
    """
    _, exponents = np.frexp(lengths.astype(np.float64))
    powers, counts = np.unique(exponents, return_counts=True)
    return {str(1 << int(power)): int(count) for power, count in zip(powers, counts, strict=True)}


def most_frequent(counts: np.ndarray, number: int) -> dict[str, int]:
    """The `number` most frequent tokens by id, of equals the lower id first; int64 counts by id [V].

    >>> most_frequent(np.array([5, 0, 7, 5]), 2)
    {'2': 7, '0': 5}
    """
    if len(counts) > number:
        least = np.partition(counts, len(counts) - number)[len(counts) - number]
        chosen = np.flatnonzero(counts >= max(int(least), 1))
    else:
        chosen = np.flatnonzero(counts)
    order = np.argsort(-counts[chosen], kind="stable")[:number]
    return {str(token): int(counts[token]) for token in chosen[order]}
