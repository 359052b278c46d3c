"""Makes a token cache of tokens that another program wrote: copied into shards of our own, or left where they are.

Either way the new directory gets a manifest, the tokenizer and lists of documents. What is copied goes through the
writer of all our shards, so its ends are checked against the contract; what stays is described file by file, with
checksums (cache/external_arrays.py), and its ends are checked only if the contract promises any. Other formats have no
ids of documents: theirs say where they lie, 16 hex digits for the shard and 16 for the row.

Cost: copied, every token is read and written once; left, every byte is read once for its checksum.
Memory: 8 bytes a document of one original, and, copied, the tokens of one shard three times.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract, check_ends
from datakit.cache.document_index import SCHEMA, document_table
from datakit.cache.external_arrays import KEY, Foreign, ForeignFile, ForeignShard
from datakit.cache.layout import (
    DOCUMENTS_SUFFIX,
    FORMAT,
    FREQUENT,
    METADATA_FILE,
    STAGE,
    TOKENIZER_FILE,
    CacheDetails,
    ShardFiles,
    SourceSums,
    array_form,
    length_histogram,
    shard_name,
)
from datakit.cache.lengths import LENGTHS_SUFFIX, encode_lengths
from datakit.cache.writer import EMPTY_XXH3, Documents, write_shard
from datakit.engine.task import TaskContext
from datakit.errors import CorruptError, NoInputError, UsageError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.ids import ids_to_arrow
from datakit.storage.manifest import Manifest, Partition, Quarantine, find_manifest, totals_of, write_manifest
from datakit.storage.parquet import ShardWriter, columns_of
from datakit.tokenize.encoders.tokenizer import parse
from datakit.tokenize.make_contract import make_contract

VERSION = 2
SHARD_TOKENS = 128 << 20
BATCH_TOKENS = 4 << 20
ENCODER = "another program"
Watch = Callable[[int, int], None]  # documents, tokens so far


@dataclass(frozen=True)
class Incoming:
    """One original: the lengths of its documents, int64 [N], and a way to read its tokens [start, stop).

    array: where its zarr array lies, and its zarr.json, if it has one and may be left there.
    """

    place: str
    lengths: np.ndarray
    read: Callable[[int, int], np.ndarray]
    array: tuple[str, dict] | None = None


@dataclass(frozen=True)
class Imported:
    """A shard of the new cache, as the manifest describes it."""

    partition: Partition
    files: ShardFiles
    lengths: dict[str, int]
    frequent: dict[str, int]
    foreign: tuple[ForeignShard, dict] | None = None


def import_cache(
    incoming: Iterable[Incoming],
    directory: str,
    tokenizer_url: str,
    *,
    layout: str,
    source: str,
    copy: bool,
    ends: tuple[str, str | None, str | None] = ("none", None, None),
    progress: Watch = lambda documents, tokens: None,
) -> Manifest:
    """Make a cache in `directory` of all originals, in order, as one source. `ends` is what stands around documents.

    `ends`: ("none" | "bos" | "eos" | "both", the first token's name, the last one's); the names None: the usual ones.
    Interrupted, it can be begun again: what was written stays. Raises UsageError, TokenizerError, CorruptError.
    """
    if find_manifest(directory) is not None:
        raise UsageError(f"{directory} holds a finished step already; choose another directory, or remove it")
    contract = _settle_contract(directory, tokenizer_url, ends)
    made: list[Imported] = []
    for original in incoming:
        for shard in _copied(original, directory, source, contract, len(made)) if copy else [
            _left(original, directory, source, contract, len(made))
        ]:  # fmt: skip
            made.append(shard)
            progress(sum(done.partition.rows for done in made), sum(done.partition.tokens or 0 for done in made))
    if not made:
        raise NoInputError(f"there is nothing to import: {source} has no documents")
    parameters = {"imported": layout, "copied": copy, "contract": msgspec.to_builtins(contract)}
    return _finish(directory, source, layout, made, contract=contract, parameters=parameters)


def _settle_contract(directory: str, tokenizer_url: str, ends: tuple[str, str | None, str | None]) -> Contract:
    data = urls.read_bytes(tokenizer_url)
    tokenizer = parse(data, tokenizer_url)
    contract = make_contract(tokenizer, tokenizer.encoder("auto"), *ends)
    atomic.commit_bytes(data, urls.join(directory, TOKENIZER_FILE))
    return msgspec.structs.replace(contract, encoder=ENCODER, encoder_version="", fallback="", long_texts="unknown")


def _copied(original: Incoming, directory: str, source: str, contract: Contract, number: int) -> Iterator[Imported]:
    """Its tokens in shards of our own, of at most SHARD_TOKENS or one longer document."""
    for first, last in _cuts(original.lengths, SHARD_TOKENS):
        path = shard_name(source, number)
        with tempfile.TemporaryDirectory(prefix="datakit-import-") as scratch:
            context = TaskContext(directory, Path(scratch), 2)
            shard = write_shard(path, _documents(original, first, last, number, contract), contract, context)
        rows, ids = last - first, _ids(number, 0, last - first)
        xxh3, size = (shard.data.xxh3, shard.data.bytes) if shard.data else (EMPTY_XXH3, 0)
        names = {"first_id": ids[0].as_py(), "last_id": ids[-1].as_py()}
        partition = Partition(path, source, rows, size, xxh3, None, shard.tokens, **names)
        yield Imported(partition, shard.files, shard.lengths, shard.frequent)
        number += 1


def _left(original: Incoming, directory: str, source: str, contract: Contract, number: int) -> Imported:
    """Its tokens where they are: a list of documents of our own, and a description of its files."""
    if original.array is None:
        raise UsageError(f"{original.place} can only be copied: its tokens are in no zarr array; say --copy")
    path, rows = shard_name(source, number), len(original.lengths)
    if contract.bos is not None or contract.eos is not None:
        for part in _documents(original, 0, rows, number, contract):
            check_ends(part.tokens, part.lengths, contract, original.place)
    with ShardWriter(urls.join(directory, path + DOCUMENTS_SUFFIX), SCHEMA) as documents:
        for first, last in _cuts(original.lengths, BATCH_TOKENS):
            documents.write(document_table(_ids(number, first, last), original.lengths[first:last]))
    listed = atomic.commit_bytes(encode_lengths(original.lengths), urls.join(directory, path) + LENGTHS_SUFFIX)
    place, metadata = original.array
    files = [ForeignFile(info.path, info.size, atomic.hash_url(info.url)[0]) for info in urls.listing(place)]
    (described,) = [file for file in files if file.path == METADATA_FILE]
    mark = fingerprint("foreign", VERSION, {"files": [msgspec.to_builtins(file) for file in files]}, [])
    names = {"first_id": _ids(number, 0, 1)[0].as_py(), "last_id": _ids(number, rows - 1, rows)[0].as_py()}
    size, tokens = sum(file.bytes for file in files), int(original.lengths.sum())
    return Imported(
        Partition(path, source, rows, size, mark, None, tokens, **names),
        ShardFiles(described.bytes, described.xxh3, documents.info.bytes, documents.info.xxh3, listed.xxh3),
        length_histogram(original.lengths),
        {},
        (ForeignShard(_reference(place, directory), 0, files), metadata),
    )


def _documents(original: Incoming, first: int, last: int, number: int, contract: Contract) -> Iterator[Documents]:
    """Rows [first, last) in batches; rows and ids count from the shard's beginning."""
    starts = np.concatenate([[0], np.cumsum(original.lengths)])
    for begin, end in _cuts(original.lengths[first:last], BATCH_TOKENS):
        start, stop = int(starts[first + begin]), int(starts[first + end])
        tokens = original.read(start, stop)
        if len(tokens) != stop - start:
            raise CorruptError(f"{original.place}: {len(tokens)} tokens where its index says {stop - start}")
        _check_ids(tokens, contract, original.place)
        lengths = original.lengths[first + begin : first + end]
        yield Documents(_ids(number, begin, end), tokens.astype(contract.dtype), lengths)


def _check_ids(tokens: np.ndarray, contract: Contract, place: str) -> None:
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= contract.vocabulary_size):
        wrong = int(tokens.max()) if tokens.min() >= 0 else int(tokens.min())
        raise UsageError(
            f"{place} holds the id {wrong}, but the tokenizer has {contract.vocabulary_size} ids; give the tokenizer "
            f"that it was made with"
        )


def _cuts(lengths: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Rows [first, last) of at most `most` tokens together, or one longer document."""
    ends, first = np.cumsum(lengths), 0
    while first < len(lengths):
        before = int(ends[first] - lengths[first])
        last = max(int(np.searchsorted(ends, before + most, "right")), first + 1)
        yield first, last
        first = last


def _ids(number: int, first: int, last: int) -> pa.StringArray:
    rows = np.arange(first, last, dtype=np.uint64)
    return ids_to_arrow(np.full(len(rows), number, np.uint64), rows)


def _reference(place: str, directory: str) -> str:
    """Relative where both are on one store, so that they can be moved together."""
    same = urls.protocol(place) == urls.protocol(directory) == "file" or (
        place.split("/")[:3] == directory.split("/")[:3] and not urls.is_local(place)
    )
    return urls.relative(place, directory) if same else place


def _finish(
    directory: str, source: str, layout: str, made: list[Imported], *, contract: Contract, parameters: dict
) -> Manifest:
    partitions = [shard.partition for shard in made]
    totals = totals_of(partitions)
    lengths, frequent = Counter[str](), Counter[str]()
    for shard in made:
        lengths.update(shard.lengths)
        frequent.update(shard.frequent)
    ordered = sorted(((int(token), count) for token, count in frequent.items()), key=lambda pair: (-pair[1], pair[0]))
    most = ordered[:FREQUENT]
    details = CacheDetails(
        format=FORMAT,
        contract=contract,
        array=array_form(contract.dtype),
        shards=[shard.files for shard in made],
        sources={source: SourceSums(len(made), totals.rows, totals.tokens or 0, 0, None, most)},
        lengths={power: lengths[power] for power in sorted(lengths, key=int)},
        frequent=most,
    )
    plain = msgspec.to_builtins(details)
    if made[0].foreign is not None:
        plain[KEY] = msgspec.to_builtins(_foreign(layout, made))
    mark = fingerprint("import", VERSION, parameters, [f"{entry.xxh3} {entry.tokens}" for entry in partitions])
    manifest = Manifest(
        stage=STAGE,
        dataset=source,
        fingerprint=mark,
        identity=mark,
        parameters=parameters,
        inputs=[],
        schema=columns_of(pa.schema([("token", pa.from_numpy_dtype(contract.dtype))])),
        partitions=partitions,
        totals=totals,
        counters={"import/documents": totals.rows, "import/tokens": totals.tokens or 0},
        quarantine=Quarantine(0),
        details=plain,
    )
    write_manifest(manifest, directory)
    return manifest


def _foreign(layout: str, made: list[Imported]) -> Foreign:
    forms, shards = [], []
    for shard in made:
        assert shard.foreign is not None
        described, metadata = shard.foreign
        if metadata not in forms:
            forms.append(metadata)
        shards.append(msgspec.structs.replace(described, form=forms.index(metadata)))
    return Foreign(layout, forms, shards)
