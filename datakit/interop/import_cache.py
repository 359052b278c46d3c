"""Makes a token cache from tokens that another program wrote, by copying them or by referring to that program's arrays.

Copied tokens pass through the regular shard writer, which checks the first and last token of every document against the
contract. Arrays left in place are described file by file, with checksums (cache/external_arrays.py); their documents
are checked only if the contract adds tokens around documents. docs/cache.md describes the result.

Cost: copying reads and writes every token once; importing by reference reads every byte once, for the checksums, and
once more if the documents are checked. Memory: about 24 bytes per document of the Levanter cache or cache shard being
imported, or 60 bytes per document of a Megatron dataset. Copying also needs memory of three times the size of one
shard's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract, check_ends
from datakit.cache.document_index import SCHEMA, document_table
from datakit.cache.external_arrays import KEY, ExternalFile, ExternalShard, ExternalShards
from datakit.cache.layout import (
    DOCUMENTS_SUFFIX,
    METADATA_FILE,
    STAGE,
    TOKENIZER_FILE,
    ShardFiles,
    content_of,
    length_histogram,
    shard_name,
)
from datakit.cache.lengths import LENGTHS_SUFFIX, encode_lengths, starts_of, stretches
from datakit.cache.writer import Documents, write_shard
from datakit.cache.written_shards import WrittenShard, cache_details
from datakit.engine.task import TaskContext
from datakit.errors import CorruptError, NoInputError, UsageError
from datakit.recipe import NAME_RULE
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.ids import ids_to_arrow
from datakit.storage.manifest import Manifest, Quarantine, find_manifest, totals_of, write_manifest
from datakit.storage.parquet import ShardWriter, columns_of
from datakit.storage.stale_files import scratch_directory
from datakit.tokenize.encoders.tokenizer import parse
from datakit.tokenize.make_contract import make_contract

VERSION = 3
SHARD_TOKENS = 128 << 20
BATCH_TOKENS = 4 << 20
ENCODER = "another program"
Progress = Callable[[int, int], None]  # called with the numbers of documents and tokens imported so far


@dataclass(frozen=True)
class ExternalTokens:
    """Tokens in another format: the documents' lengths, int64 [N], and a function that reads tokens [start, stop)."""

    place: str
    lengths: np.ndarray
    read: Callable[[int, int], np.ndarray]
    # URL and parsed zarr.json of the array that holds the tokens; None if the tokens can only be copied
    array: tuple[str, dict[str, Any]] | None = None


@dataclass(frozen=True)
class ImportedShard:
    """A shard of the new cache. array: the description and the zarr.json of the array in which the tokens are left;
    None if they are copied.
    """

    shard: WrittenShard
    array: tuple[ExternalShard, dict[str, Any]] | None = None


def import_cache(
    originals: Iterable[ExternalTokens],
    directory: str,
    tokenizer_url: str,
    *,
    layout: str,
    source: str,
    copy: bool,
    ends: tuple[str, str | None, str | None] = ("none", None, None),
    progress: Progress = lambda documents, tokens: None,
) -> Manifest:
    """Make a cache in `directory` from all originals, in their order, as one source. `ends`: the tokens around each
    document, as ("none" | "bos" | "eos" | "both", bos token, eos token). None in place of a token stands for the
    tokenizer's usual token. An interrupted import can be restarted; finished shards are kept. Raises UsageError,
    NoInputError, TokenizerError, CorruptError.
    """
    if not NAME_RULE.fullmatch(source):
        raise UsageError(
            f"source name {source!r}: use at most 100 letters, digits, '.', '_' and '-', starting with a letter or a "
            "digit; choose another name with --name"
        )
    if find_manifest(directory) is not None:
        raise UsageError(f"{directory} already holds a finished step; choose another directory, or remove this one")
    contract = _settle_contract(directory, tokenizer_url, ends)
    imported: list[ImportedShard] = []
    import_shards = _copy if copy else _refer
    for original in originals:
        for entry in import_shards(original, directory, source, contract, len(imported)):
            imported.append(entry)
            progress(sum(done.shard.rows for done in imported), sum(done.shard.tokens for done in imported))
    if not imported:
        raise NoInputError(f"nothing to import: {source} has no documents")
    parameters = {"imported": layout, "copied": copy, "contract": msgspec.to_builtins(contract)}
    atomic.sync_directories(sorted(atomic.folders_above(directory, (file.path for file in urls.listing(directory)))))
    return write_manifest(_manifest(source, layout, imported, contract, parameters), directory)


def _settle_contract(directory: str, tokenizer_url: str, ends: tuple[str, str | None, str | None]) -> Contract:
    data = urls.read_bytes(tokenizer_url)
    tokenizer = parse(data, tokenizer_url)
    contract = make_contract(tokenizer, tokenizer.encoder("auto"), *ends)
    atomic.commit_bytes(data, urls.join(directory, TOKENIZER_FILE))
    return msgspec.structs.replace(contract, encoder=ENCODER, encoder_version="", fallback="", long_texts="unknown")


def _copy(
    original: ExternalTokens, directory: str, source: str, contract: Contract, number: int
) -> Iterator[ImportedShard]:
    """Write the tokens to shards that hold at most SHARD_TOKENS tokens or a single longer document."""
    for first, last in stretches(starts_of(original.lengths), SHARD_TOKENS):
        with scratch_directory() as scratch:
            context = TaskContext(directory, scratch, 2)
            documents = _documents(original, first, last, number, contract)
            shard, _ = write_shard(source, shard_name(source, number), documents, contract, context)
        yield ImportedShard(shard)
        number += 1


def _refer(
    original: ExternalTokens, directory: str, source: str, contract: Contract, number: int
) -> Iterator[ImportedShard]:
    """Leave the tokens where they are: write a list of documents, and describe the files of the array."""
    if original.array is None:
        raise UsageError(f"{original.place} can only be copied: its tokens are not in a zarr array; add --copy")
    path, rows = shard_name(source, number), len(original.lengths)
    if contract.bos is not None or contract.eos is not None:
        for part in _documents(original, 0, rows, number, contract):
            check_ends(part.tokens, part.lengths, contract, original.place)
    with ShardWriter(urls.join(directory, path + DOCUMENTS_SUFFIX), SCHEMA) as documents:
        for first, last in stretches(starts_of(original.lengths), BATCH_TOKENS):
            documents.write(document_table(_ids(number, first, last), original.lengths[first:last]))
    lengths = atomic.commit_bytes(encode_lengths(original.lengths), urls.join(directory, path) + LENGTHS_SUFFIX)
    place, zarr_json = original.array
    files = [ExternalFile(info.path, info.size, atomic.hash_url(info.url)[0]) for info in urls.listing(place)]
    (metadata,) = [file for file in files if file.path == METADATA_FILE]
    shard = WrittenShard(
        source=source,
        text_bytes=None,
        first_id=_ids(number, 0, 1)[0].as_py(),
        last_id=_ids(number, rows - 1, rows)[0].as_py(),
        quarantined=0,
        path=path,
        rows=rows,
        tokens=int(original.lengths.sum()),
        bytes=sum(file.bytes for file in files),
        xxh3=fingerprint("foreign", VERSION, {"files": [msgspec.to_builtins(file) for file in files]}, []),
        lengths=length_histogram(original.lengths),
        frequent={},
        files=ShardFiles(metadata.bytes, metadata.xxh3, documents.info.bytes, documents.info.xxh3, lengths.xxh3),
    )
    yield ImportedShard(shard, (ExternalShard(_reference(place, directory), 0, files), zarr_json))


def _documents(original: ExternalTokens, first: int, last: int, number: int, contract: Contract) -> Iterator[Documents]:
    """Yield documents [first, last) in batches, with ids for shard `number`, where document `first` becomes row 0."""
    starts = starts_of(original.lengths)
    for begin, end in stretches(starts[first : last + 1], BATCH_TOKENS):
        start, stop = int(starts[first + begin]), int(starts[first + end])
        tokens = original.read(start, stop)
        if len(tokens) != stop - start:
            raise CorruptError(f"{original.place}: {len(tokens)} tokens were read, but its index lists {stop - start}")
        _check_ids(tokens, contract, original.place)
        lengths = original.lengths[first + begin : first + end]
        yield Documents(_ids(number, begin, end), tokens.astype(contract.dtype), lengths)


def _check_ids(tokens: np.ndarray, contract: Contract, place: str) -> None:
    if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= contract.vocabulary_size):
        wrong = int(tokens.max()) if tokens.min() >= 0 else int(tokens.min())
        raise UsageError(
            f"{place} holds the id {wrong}, but the tokenizer has {contract.vocabulary_size} ids; specify the "
            f"tokenizer that made these tokens"
        )


def _ids(number: int, first: int, last: int) -> pa.StringArray:
    rows = np.arange(first, last, dtype=np.uint64)
    return ids_to_arrow(np.full(len(rows), number, np.uint64), rows)


def _reference(place: str, directory: str) -> str:
    """Return `place`, relative to `directory` if both are in the same store, so that the two can be moved together."""
    same = urls.protocol(place) == urls.protocol(directory) == "file" or (
        place.split("/")[:3] == directory.split("/")[:3] and not urls.is_local(place)
    )
    return urls.relative(place, directory) if same else place


def _manifest(
    source: str, layout: str, imported: list[ImportedShard], contract: Contract, parameters: dict[str, Any]
) -> Manifest:
    partitions = [entry.shard.partition for entry in imported]
    totals = totals_of(partitions)
    details = msgspec.to_builtins(cache_details([entry.shard for entry in imported], contract))
    if imported[0].array is not None:
        details[KEY] = msgspec.to_builtins(_external_shards(layout, imported))
    parameters |= {"content": content_of(partitions)}
    mark = fingerprint(STAGE, VERSION, parameters, [])
    return Manifest(
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
        details=details,
        version=VERSION,
    )


def _external_shards(layout: str, imported: list[ImportedShard]) -> ExternalShards:
    forms, shards = [], []
    for entry in imported:
        assert entry.array is not None
        shard, zarr_json = entry.array
        if zarr_json not in forms:
            forms.append(zarr_json)
        shards.append(msgspec.structs.replace(shard, form=forms.index(zarr_json)))
    return ExternalShards(layout, forms, shards)
