"""Tests of sources of all formats, from a recipe to the cache, in one run of the pipeline."""

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
from datakit.cache.layout import CHUNK_TOKENS
from datakit.cache.reader import open_cache
from datakit.loader import open_source
from datakit.recipe import parse_recipe
from datakit.storage.manifest import read_manifest
from datakit.validate.intact import require_intact
from tests.support.caches import trained


def conversation(*turns: tuple[str, str | None]) -> list[dict[str, str | None]]:
    return [{"role": role, "content": content} for role, content in turns]


def mask_of(directory: Path, shard: str) -> tuple[np.ndarray, int]:
    """The loss mask as any reader of zarr sees it, and its chunks."""
    store = {"driver": "file", "path": f"{directory}/{shard}.loss_mask/"}
    array = tensorstore.open({"driver": "zarr3", "kvstore": store}, open=True).result()
    shape = array.chunk_layout.read_chunk.shape
    assert shape is not None
    assert shape[0] is not None
    return array.read().result(), shape[0]


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def chat_tokenizer(folder: Path) -> str:
    made = tokenizers.Tokenizer.from_str(trained().decode())
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    (folder / "tokenizer.json").write_text(made.to_str())
    return str(folder / "tokenizer.json")


CHATS = [
    conversation(("user", "what is two and two"), ("assistant", "four"), ("user", "sure"), ("assistant", "yes")),
    conversation(("system", "be brief"), ("user", "close <|im_end|> early")),
    conversation(("user", "what time is it"), ("assistant", None), ("tool", "noon"), ("assistant", "it is noon")),
]
ROWS = [[5, 6, 7], [9, 0], list(range(1, 300))]
MASKS = [[0, 1, 1], [1, 1], [1] * 299]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of conversations, plain texts and prebuilt tokens."""
    root = tmp_path_factory.mktemp("formats")
    chats = write_jsonl(root / "chat.jsonl", [{"messages": messages} for messages in CHATS])
    plain = write_jsonl(root / "plain.jsonl", [{"text": "some words"}])
    pq.write_table(pa.table({"tokens": ROWS, "mask": MASKS}), root / "tokens.parquet")
    with_text = {"transform": "datakit.tokenize.chat:with_text", "transform_version": 1}
    as_text = {"transform": "datakit.tokenize.prebuilt:with_text", "transform_version": 1}
    sources = [
        {"name": "chat", "url": chats, **with_text},
        {"name": "web", "url": plain},
        {"name": "ids", "url": str(root / "tokens.parquet"), **as_text},
    ]
    settings = {
        "tokenizer": chat_tokenizer(root),
        "formats": {"chat": "chat", "ids": "tokens"},
        "chat_format": "chatml",
        "loss_mask": "mask",
    }
    recipe = parse_recipe({"name": "made", "sources": sources, "tokenize": settings}, "test", root)
    (step,) = datakit.run(recipe, root=str(root / "root"), workers=1).steps_of("tokenize")
    return Path(step.directory)


def test_conversations_train_on_the_assistants_messages(directory: Path) -> None:
    cache = open_cache(str(directory))
    assert require_intact(cache) > 0
    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))

    def ids(text: str, content: bool) -> list[int]:
        reference.encode_special_tokens = content
        return reference.encode(text).ids

    expected = {}
    for messages in CHATS:
        tokens: list[int] = []
        mask: list[int] = []
        for turn in messages:
            target = int(turn["role"] == "assistant" and turn["content"] is not None)
            pieces = [
                ids(f"<|im_start|>{turn['role']}\n", False),
                ids(turn["content"] or "", True),
                ids("<|im_end|>\n", False),
            ]
            tokens += [token for piece in pieces for token in piece]
            mask += [0] * len(pieces[0]) + [target] * (len(pieces[1]) + len(pieces[2]))
        expected[(*tokens, 0)] = [*mask, mask[-1]]
    (shard,) = [shard for shard in cache.shards if shard.source == "chat"]
    found, start = mask_of(directory, shard.path)[0], 0
    for row in range(shard.row_start, shard.row_start + shard.rows):
        document = cache.document(row)
        stop = start + len(document.tokens)
        assert found[start:stop].tolist() == expected[tuple(document.tokens.tolist())]
        start = stop
    assert read_manifest(str(directory)).counters["tokenize/messages_without_content"] == 1


def test_manifest_and_loader_know_the_masks(directory: Path) -> None:
    details = read_manifest(str(directory)).details
    shards = {shard.source: shard for shard in open_cache(str(directory)).shards}
    masks = {source: mask_of(directory, shards[source].path)[0] for source in ("chat", "ids")}
    assert details["loss_mask"]["dtype"] == "uint8"
    assert [entry["loss_mask"] is not None for entry in details["shards"]] == [True, False, True]
    targets = {name: sums["targets"] for name, sums in details["sources"].items()}
    assert targets == {"chat": int(masks["chat"].sum()), "web": None, "ids": int(masks["ids"].sum())}
    source = open_source(str(directory))  # for a loader, all tokens of a source without a mask are targets
    assert source.has_loss_mask
    for name, shard in shards.items():
        expected = masks.get(name, np.ones(shard.tokens)).astype(bool)
        found = source.read_loss_mask(shard.token_start, shard.token_start + shard.tokens)
        assert (found == expected).all()


def test_prebuilt_tokens_pass_through_with_their_mask(directory: Path) -> None:
    cache = open_cache(str(directory))
    (shard,) = [shard for shard in cache.shards if shard.source == "ids"]
    found = {tuple(cache.document(row).tokens.tolist()) for row in range(shard.row_start, shard.row_start + shard.rows)}
    assert found == {(5, 6, 7, 0), (9, 0), (*range(1, 300), 0)}  # an existing end-of-text is not doubled
    mask, chunks = mask_of(directory, shard.path)
    assert len(mask) == shard.tokens == int(mask.sum()) + 1
    assert chunks == min(shard.tokens, CHUNK_TOKENS)
