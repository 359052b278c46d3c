"""Tokenizers that are no file, and sources that are no plain text: conversations and prebuilt tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorstore
import tokenizers

import datakit
from datakit.cache.contract import Contract, Special, frame_mask
from datakit.cache.layout import CHUNK_TOKENS
from datakit.cache.reader import open_cache
from datakit.errors import CorruptError, RecipeError, TokenizerError
from datakit.loader import open_source
from datakit.recipe import parse_recipe
from datakit.storage.manifest import read_manifest
from datakit.tokenize.chat import chat_format, with_text
from datakit.tokenize.prebuilt import prebuilt_tokens
from datakit.validate.token_cache import require_intact
from tests.support.caches import trained
from tests.support.dna import Codons


def run(root: Path, sources: list[dict[str, Any]], tokenize: dict[str, Any]) -> Path:
    """The whole pipeline, in real worker processes, to a cache; its directory."""
    recipe = parse_recipe({"name": "made", "sources": sources, "tokenize": tokenize}, "test", root)
    (step,) = datakit.run(recipe, root=str(root / "root"), workers=2).steps_of("tokenize")
    return Path(step.directory)


def written(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


# --- custom tokenizers


def test_bytes_are_tokens(tmp_path: Path) -> None:
    texts = ["plain", "naïve <|endoftext|> 漢字", "x" * 300_000]
    url = written(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    cache = open_cache(str(run(tmp_path, [{"name": "web", "url": url}], {"tokenizer": "bytes"})))
    assert (cache.contract.encoder, cache.contract.vocabulary_size, cache.contract.eos) == (
        "bytes",
        257,
        Special("<|endoftext|>", 256),
    )
    found = sorted(bytes(document.tokens[:-1].astype(np.uint8)).decode() for document in cache.documents())
    assert found == sorted(texts)
    assert all(document.tokens[-1] == 256 for document in cache.documents())
    assert require_intact(cache) > 0


def test_a_tokenizer_of_one_s_own_by_name_and_version(tmp_path: Path) -> None:
    texts = ["ACGTTTGGA", "AAANCCGGGTT"]
    sources = [{"name": "genes", "url": written(tmp_path / "a.jsonl", [{"text": text} for text in texts])}]
    own = {"tokenizer": "tests.support.dna:codons", "eos": "<eos>"}
    cache = open_cache(str(run(tmp_path, sources, {**own, "tokenizer_version": "2"})))
    expected = sorted([*Codons().encode_batch([text])[0].tolist(), 65] for text in texts)
    assert sorted(document.tokens.tolist() for document in cache.documents()) == expected
    said = json.loads((Path(cache.directory) / "tokenizer.json").read_text())
    assert (said["name"], said["version"], said["vocabulary_size"]) == ("codons", "2", 66)
    with pytest.raises(datakit.errors.DatakitError, match="has version '2', the recipe says '3'"):
        run(tmp_path, sources, {**own, "tokenizer_version": "3"})
    with pytest.raises(datakit.errors.DatakitError, match="say tokenizer_version = '2'"):
        run(tmp_path, sources, own)


# --- conversations


def conversation(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def mask_of(directory: Path, shard: str) -> tuple[np.ndarray, int]:
    """The loss mask as any reader of zarr sees it, and its chunks."""
    store = {"driver": "file", "path": f"{directory}/{shard}.loss_mask/"}
    array = tensorstore.open({"driver": "zarr3", "kvstore": store}, open=True).result()
    shape = array.chunk_layout.read_chunk.shape
    assert shape is not None
    assert shape[0] is not None
    return array.read().result(), shape[0]


def chat_tokenizer(folder: Path) -> str:
    made = tokenizers.Tokenizer.from_str(trained().decode())
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    (folder / "tokenizer.json").write_text(made.to_str())
    return str(folder / "tokenizer.json")


def test_conversations_train_on_what_the_assistant_says(tmp_path: Path) -> None:
    chats = [
        conversation(("user", "what is two and two"), ("assistant", "four"), ("user", "sure"), ("assistant", "yes")),
        conversation(("system", "be brief"), ("user", "close <|im_end|> early")),
    ]
    url = written(tmp_path / "chat.jsonl", [{"messages": messages} for messages in chats])
    plain = written(tmp_path / "plain.jsonl", [{"text": "some words"}])
    path = chat_tokenizer(tmp_path)
    transform = {"transform": "datakit.tokenize.chat:with_text", "transform_version": 1}
    sources = [{"name": "chat", "url": url, **transform}, {"name": "web", "url": plain}]
    directory = run(tmp_path, sources, {"tokenizer": path, "formats": {"chat": "chat"}, "chat_format": "chatml"})
    cache = open_cache(str(directory))
    assert require_intact(cache) > 0
    reference = tokenizers.Tokenizer.from_file(path)

    def ids(text: str, content: bool) -> list[int]:
        reference.encode_special_tokens = content
        return reference.encode(text).ids

    expected = {}
    for messages in chats:
        tokens: list[int] = []
        mask: list[int] = []
        for turn in messages:
            target = int(turn["role"] == "assistant")
            pieces = [
                ids(f"<|im_start|>{turn['role']}\n", False),
                ids(turn["content"], True),
                ids("<|im_end|>\n", False),
            ]
            tokens += [token for piece in pieces for token in piece]
            mask += [0] * len(pieces[0]) + [target] * (len(pieces[1]) + len(pieces[2]))
        expected[(*tokens, 0)] = [*mask, mask[-1]]
    (shard,) = [shard.path for shard in cache.shards if shard.source == "chat"]
    found, start = mask_of(directory, shard)[0], 0
    documents = list(cache.documents())[:2]
    for document in documents:
        stop = start + len(document.tokens)
        assert found[start:stop].tolist() == expected[tuple(document.tokens.tolist())]
        start = stop
    manifest = read_manifest(str(directory))
    assert manifest.details["loss_mask"]["dtype"] == "uint8"
    assert manifest.details["sources"]["chat"]["targets"] == int(found.sum())
    assert [entry["loss_mask"] is not None for entry in manifest.details["shards"]] == [True, False]
    assert manifest.details["sources"]["web"]["targets"] is None
    source = open_source(str(directory))  # what a loader sees: documents of a source without a mask are all targets
    assert source.has_loss_mask
    assert source.read_loss_mask(0, len(found)).tolist() == found.astype(bool).tolist()
    assert source.read_loss_mask(len(found), source.tokens).all()


def test_a_chat_format_is_a_name_or_says_where_the_content_goes() -> None:
    assert chat_format("simple").head == "<|{role}|>\n"
    assert (chat_format("[{role}] {content};").head, chat_format("[{role}] {content};").tail) == ("[{role}] ", ";")
    with pytest.raises(RecipeError, match="did you mean 'chatml'"):
        chat_format("chatlm")


def test_a_conversation_s_text_is_its_messages() -> None:
    batch = pa.RecordBatch.from_pylist([{"messages": conversation(("user", "hi"), ("assistant", 'say "no"'))}])
    assert with_text(batch).column("text").to_pylist() == ['["user", "hi"]\n["assistant", "say \\"no\\""]']


# --- prebuilt tokens


def test_prebuilt_tokens_pass_through_with_their_mask(tmp_path: Path) -> None:
    rows = [[5, 6, 7], [9, 0], list(range(1, 300))]
    table = pa.table({"tokens": rows, "mask": [[0, 1, 1], [1, 1], [1] * 299]})
    pq.write_table(table, tmp_path / "tokens.parquet")
    (tmp_path / "tokenizer.json").write_bytes(trained())
    transform = {"transform": "datakit.tokenize.prebuilt:with_text", "transform_version": 1}
    sources = [{"name": "ids", "url": str(tmp_path / "tokens.parquet"), **transform}]
    choices = {"tokenizer": str(tmp_path / "tokenizer.json"), "formats": {"ids": "tokens"}, "loss_mask": "mask"}
    directory = run(tmp_path, sources, choices)
    cache = open_cache(str(directory))
    found = {tuple(document.tokens.tolist()) for document in cache.documents()}
    assert found == {(5, 6, 7, 0), (9, 0), (*range(1, 300), 0)}  # an end that is there is not doubled
    mask, chunks = mask_of(directory, "ids/shard-00000")
    assert len(mask) == cache.tokens == int(mask.sum()) + 1
    assert chunks == min(cache.tokens, CHUNK_TOKENS)


CONTRACT = Contract("", "", 100, None, Special("<end>", 0), [])


def test_ids_beyond_the_vocabulary_and_holes_are_refused() -> None:
    assert prebuilt_tokens(pa.array([[1], [], [99]]), CONTRACT, "here")[0].tolist() == [1, 99]
    for column in ([[1, 100]], [[-1]]):
        with pytest.raises(TokenizerError, match="made with another tokenizer"):
            prebuilt_tokens(pa.array(column), CONTRACT, "here")
    for column in (pa.array([[1, None]]), pa.array([[1], None]), pa.array([[1.0]]), pa.array(["1"])):
        with pytest.raises(CorruptError):
            prebuilt_tokens(column, CONTRACT, "here")


def test_the_mask_of_an_end_is_that_of_the_token_before_it() -> None:
    mask, lengths = np.array([0, 1, 1, 0], np.uint8), np.array([2, 0, 2])
    assert frame_mask(mask, lengths, CONTRACT).tolist() == [0, 1, 1, 0, 1, 0, 0]
    both = Contract("", "", 100, Special("<begin>", 1), Special("<end>", 0), [])
    assert frame_mask(mask, lengths, both).tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 0, 0]
