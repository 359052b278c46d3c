"""Encodes a sample of a cache's documents again, with the reference tokenizer, and decodes their tokens.

The sample consists of up to DOCUMENTS documents from each of SHARDS shards, which are spread evenly over the cache. To
read little text, all documents of a shard come from one row group; for a document bucket, from one that has documents
of the bucket. The sample contains neither documents longer than LONGEST_BYTES nor documents that leave the dataset; if
nothing is left of a shard's sample, the check says so. The ids must be those of the reference, with the contract's
tokens around them. If the tokenizer decodes the ids of every golden string in the contract to that string, either
unchanged or as its normalizer changes it, the same must hold for each document of the sample.

Conversations and lists of tokens are not texts, so sources that hold them are not encoded again. Nor are the documents
of a cache with a custom tokenizer, whose code may come from a stranger.

Cost: loading the tokenizer, and encoding at a few MB of text per CPU-second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.cache.contract import Contract
from datakit.cache.layout import DOCUMENTS_SUFFIX, REMEDY, TOKENIZER_FILE
from datakit.cache.reader import Cache, Shard
from datakit.errors import TokenizerError
from datakit.storage.parquet import open_shard, read_group
from datakit.text.string_buffers import string_buffers
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.validate.between.edited_sample import with_edits
from datakit.validate.between.final.encoded_parts import encoded_parts
from datakit.validate.finding import Result
from datakit.validate.id_lists import Ids, contained, distinct, ids_of, positions, read_ids
from datakit.validate.subject import Subject
from datakit.validate.tokenizer_file import tokenizer_at

SHARDS = 4
DOCUMENTS = 8
LONGEST_BYTES = 1 << 14
TEXT = "text"


@dataclass(frozen=True)
class _Document:
    """A document of the sample: its shard, its row there, its id and its text."""

    shard: Shard
    row: int
    name: str
    text: str


def check(step: Subject, result: Result) -> None:
    """Encode and decode a sample of the documents."""
    if missing := next(filter(None, map(step.missing, ("consolidate", "normalize", "select"))), ""):
        return result.skip(missing)
    if not (inputs := files_with_texts(step)) or step.details is None:
        return result.skip("the step has no input with texts" if not inputs else "the manifest contradicts itself")
    if not step.sound(place := step.url(TOKENIZER_FILE)):
        return result.skip(f"{TOKENIZER_FILE} is damaged")
    try:
        tokenizer = tokenizer_at(place)
    except TokenizerError as error:
        return result.skip(f"the tokenizer cannot be loaded here: {error}")
    if not isinstance(tokenizer, Tokenizer):
        return result.skip("a custom tokenizer has no reference")
    with result.reading(step.manifest_url, REMEDY):
        _compare(step, inputs, tokenizer, result)
    return None


def _compare(step: Subject, above: list[tuple[str, str]], tokenizer: Tokenizer, result: Result) -> None:
    assert step.details is not None
    contract, cache = step.details.contract, Cache(step.directory, step.manifest)
    sample = list(_sample(step, above, cache, result))
    reference = tokenizer.reference_encoder(contract.special_strings)
    exact = all(_decodes(tokenizer, one.ids, one.text) for one in contract.golden)
    if not exact:
        result.skip("the tokenizer does not decode its golden strings exactly, so no document is decoded")
    ids, lengths = reference.encode_batch([one.text for one in sample])
    for one, wanted in zip(sample, np.split(ids, np.cumsum(lengths)[:-1]) if sample else (), strict=True):
        found = _text_tokens(cache, one, contract)
        result.count("encoded document")
        place = step.url(one.shard.path)
        if not np.array_equal(found, wanted):
            difference = f"holds other tokens for the document {one.name} than the reference gives"
            result.find(place, difference, REMEDY)
        elif exact and not _decodes(tokenizer, found.tolist(), one.text):
            result.find(place, f"holds tokens for the document {one.name} that decode to another text", REMEDY)


def _decodes(tokenizer: Tokenizer, ids: list[int], text: str) -> bool:
    """Return True if the ids decode to the text, or to what the tokenizer's normalizer makes of it. Return False for
    ids that do not fit in 32 bits, which a forged contract may hold.
    """
    if ids and not 0 <= min(ids) <= max(ids) < 1 << 32:
        return False
    normalizer, found = tokenizer.reference.normalizer, tokenizer.reference.decode(ids, skip_special_tokens=False)
    return found == text or (normalizer is not None and found == normalizer.normalize_str(text))


def _text_tokens(cache: Cache, one: _Document, contract: Contract) -> np.ndarray:
    """Return the tokens of a document without the contract's tokens around it."""
    tokens = cache.document(one.shard.row_start + one.row).tokens
    return tokens[contract.bos is not None : len(tokens) - (contract.eos is not None)]


def _sample(step: Subject, above: list[tuple[str, str]], cache: Cache, result: Result) -> Iterator[_Document]:
    for index, url, number in chosen_files(step, above, result):
        shard = cache.shards[index]
        listed, known = read_ids(step.url(shard.path) + DOCUMENTS_SUFFIX), 0
        for name, text in with_edits(step, url, _chosen(step, index, url, number, listed)):
            row = int(positions(ids_of(pa.array([name])), listed)[0]) if len(listed) else -1
            if row >= 0:
                known += 1
                yield _Document(shard, row, name, text)
        if not known:
            what = f"has {LONGEST_BYTES >> 10} KiB or less and is in the shard"
            result.skip(f"{shard.path}: no document of the row group that was chosen {what}")


def _chosen(step: Subject, index: int, url: str, number: int, listed: Ids) -> list[tuple[str, str]]:
    """Return the id and the text of some documents for a shard, of which some may not be in it. listed: its ids."""
    if step.manifest.partitions[index].bucket is not None:
        return _members(url, number, listed)
    found = step.texts.sample(url, number) if step.texts is not None else None
    return list(_texts(url, number)) if found is None else found


def _members(url: str, number: int, listed: Ids) -> list[tuple[str, str]]:
    """Return some documents of a document bucket, all from the row group of one that `number` selects. listed: the ids
    of the bucket's documents in the file, in order.
    """
    one = listed.text((2 * number + 1) * len(listed) // (2 * SHARDS))
    with open_shard(url) as shard:
        for group in range(shard.metadata.num_row_groups):
            ids = read_group(shard, group, url, ["id"])["id"]
            if ids[len(ids) - 1].as_py() >= one:
                inside = contained(ids_of(ids), listed)
                return sampled(read_group(shard, group, url, ["id", "text"]).filter(pa.array(inside)))
    return []


def files_with_texts(step: Subject) -> list[tuple[str, str]]:
    """Return the files that were encoded, in the order of the shards, each with its source. These are the normalized
    partitions in which documents stay or, for a step of an earlier version, the consolidated partitions with documents.
    """
    inputs = step.inputs_of("consolidate") or step.inputs_of("normalize")
    select = next((manifest for _, manifest in step.inputs_of("select")), None)
    return [
        (one.partition.source, above.url(one.partition))
        for above, manifest in inputs
        for one in encoded_parts(manifest.partitions, select)
    ]


def chosen_files(step: Subject, above: list[tuple[str, str]], result: Result) -> list[tuple[int, str, int]]:
    """Return the files of the sample: for each, the index of its shard, the URL of its texts, and the number for
    `_texts`. above: the result of `files_with_texts`.
    """
    formats = step.manifest.parameters.get("formats") or {}
    pairs: list[tuple[int, str]] = []
    for index, (shard, (source, url)) in enumerate(zip(step.manifest.partitions, above, strict=False)):
        if formats.get(source, TEXT) != TEXT:
            result.skip(f"source {source!r} does not hold texts, so it is not encoded again")
        elif step.sound(url, step.url(shard.path) + DOCUMENTS_SUFFIX):
            pairs.append((index, url))
    chosen = distinct(np.arange(SHARDS) * len(pairs) // SHARDS).tolist() if pairs else []
    return [(*pairs[number], number) for number in chosen]


def _texts(url: str, number: int) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of some documents, all from the row group that `number` selects."""
    with open_shard(url) as shard:
        table = read_group(shard, number % shard.metadata.num_row_groups, url, ["id", "text"])
    yield from sampled(table)


def sampled(table: pa.Table) -> list[tuple[str, str]]:
    """Return the id and the text of some documents of a row group."""
    short = np.flatnonzero(np.diff(string_buffers(table["text"])[1]) <= LONGEST_BYTES)
    places = (2 * np.arange(DOCUMENTS) + 1) * len(short) // (2 * DOCUMENTS)
    rows = table.select(["id", "text"]).take(pa.array(short[distinct(places)] if len(short) else short))
    return list(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
