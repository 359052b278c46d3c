"""Conversations that a template renders, from a recipe to the batches and the loss of a trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datakit
from datakit.cache.reader import Cache, open_cache
from datakit.errors import DatakitError, TokenizerError
from datakit.loader import Component, Loader, Mixture, Packing, Shuffle, one_pass, open_source
from datakit.recipe import parse_recipe
from datakit.storage.manifest import read_manifest
from datakit.validate.validation import validate
from tests.support.tokens.chat_tokens import targets
from tests.support.tokens.template_cases import CONVERSATIONS, FOLDER, Conversation, byte_level, turns

BROKEN = turns(("user", "a secret"), ("wizard", "abra"))
CHATML = (FOLDER / "chatml.jinja").read_text()
STRICT = "{% for one in messages %}{{ raise_exception('no wizards') if one.role == 'wizard' }}{% endfor %}"
CHATS = [one for name, one in CONVERSATIONS.items() if name not in ("tools", "reasoning")]


def recipe(folder: Path, chats: list[Conversation], template: str, **settings: Any) -> Any:
    (folder / "tokenizer.json").write_text(byte_level().reference.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "</s>"}))
    records = [{"messages": one.messages, **({"tools": json.dumps(one.tools)} if one.tools else {})} for one in chats]
    (folder / "chats.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {"name": "chats", "url": "chats.jsonl", "transform": "datakit.tokenize.chat:with_text"}
    tokenize = {"tokenizer": "tokenizer.json", "eos": "</s>", "formats": {"chats": "chat"}, "chat_format": "template"}
    document = {"name": "made", "sources": [{**source, "transform_version": 1}], "tokenize": {**tokenize, **settings}}
    return parse_recipe(document, "test", folder)


def cached(folder: Path, chats: list[Conversation], template: str, workers: int = 1, **settings: Any) -> Cache:
    """The cache of these conversations. The folder `root` inside the given one is the root."""
    made = datakit.run(recipe(folder, chats, template, **settings), root=str(folder / "root"), workers=workers)
    return open_cache(made.steps_of("tokenize")[0].directory)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return cached(tmp_path_factory.mktemp("chats"), CHATS, CHATML)


def test_targets_are_what_the_generation_tags_mark(cache: Cache) -> None:
    found = targets(cache, byte_level().reference)
    assert len(found) == len(CHATS)
    for one in CHATS:
        text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in one.messages) + "</s>"
        answers = [turn["content"] for turn in one.messages if turn["role"] == "assistant"]
        assert found[text] == [f"{answer}<|im_end|>" for answer in answers]
    counters = read_manifest(cache.directory).counters
    assert counters["tokenize/conversations_without_targets"] == 1 and counters["tokenize/quarantined"] == 0


def test_template_is_in_the_contract_and_its_hash_in_the_fingerprints(cache: Cache, tmp_path: Path) -> None:
    template = cache.contract.chat_template
    assert template is not None
    assert (template.template, template.variables) == (CHATML, {"eos_token": "</s>"})
    assert read_manifest(cache.directory).parameters["chat_template_sha256"] == template.sha256
    other = cached(tmp_path, CHATS[:1], CHATML + "\n")
    assert other.contract.chat_template != template
    assert len({Path(one.directory).name for one in (cache, other)}) == 2


def test_cache_is_valid_and_does_not_depend_on_workers(cache: Cache, tmp_path: Path) -> None:
    again = cached(tmp_path, CHATS, CHATML, workers=2)
    one, other = (
        {
            str(file.relative_to(each.directory)): file.read_bytes()
            for file in Path(each.directory).glob("data/**/*")
            if file.is_file()
        }
        for each in (cache, again)
    )
    assert one == other and len(one) > 3
    assert validate(cache.directory).findings == []


def test_loader_and_loss_count_the_targets_alone(cache: Cache) -> None:
    jnp, layers = pytest.importorskip("jax.numpy"), pytest.importorskip("datakit.trainer.models.layers")
    source = open_source(cache.directory)
    component = Component(source, packing=Packing("truncate"), shuffle=Shuffle("none"))
    mixture = Mixture({"chats": component}, {"chats": 1.0}, sequence_length=256, batch_size=2)
    seen = list[int]()
    with Loader(one_pass(mixture, "chats", component, sequence_length=256, batch_size=2)) as loader:
        for batch in loader.iterate():
            arrays = (jnp.asarray(array) for array in (batch.tokens, batch.segments, batch.loss_mask))
            labels, counted = layers.next_tokens(*arrays)
            seen += np.asarray(labels)[np.asarray(counted) > 0].tolist()
    tokens, mask = cache.read(0, source.tokens), cache.read_loss_mask(0, source.tokens)
    assert sorted(seen) == sorted(tokens[np.asarray(mask, bool)].tolist())


def test_conversation_that_cannot_be_rendered_is_counted_and_named(tmp_path: Path) -> None:
    chats = [*CHATS[:3], Conversation(BROKEN)]
    with pytest.raises(DatakitError, match="max_quarantined") as caught:
        cached(tmp_path, chats, STRICT + CHATML)
    assert "TemplateError in line 1: no wizards" in str(caught.value)
    assert "secret" not in str(caught.value)
    made = cached(tmp_path, chats, STRICT + CHATML, max_quarantined=1)
    manifest = read_manifest(made.directory)
    assert manifest.totals.rows == 3 and manifest.counters["tokenize/quarantined"] == 1
    assert validate(made.directory).findings == []


def test_tools_of_a_record_reach_the_template(tmp_path: Path) -> None:
    template = "{{ tools | tojson }}{% generation %}{{ messages[0].content }}{% endgeneration %}"
    made = cached(tmp_path, [CONVERSATIONS["tools"], CHATS[0]], template, add="none")
    texts = targets(made, byte_level().reference)
    assert sorted(text.partition("]")[0][:20] for text in texts) == ['[{"type": "function"', "nullwhat is two and "]
    tools = next(text for text in texts if text.startswith("["))
    assert json.loads(tools.removesuffix("how is it outside")) == CONVERSATIONS["tools"].tools


def test_template_that_cannot_be_used_ends_the_run_at_the_contract(tmp_path: Path) -> None:
    with pytest.raises(DatakitError, match="TemplateSyntaxError in line 1"):
        cached(tmp_path, CHATS[:1], "{% if %}")
    with pytest.raises(TokenizerError, match="has no chat template"):
        cached(tmp_path, CHATS[:1], "")
    assert not list((tmp_path / "root").glob("made/tokenize-*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_date": "2026-01-31", "chat_format": "chatml"}, "chat_date has no effect unless chat_format"),
        ({"tools": "functions", "formats": {}}, "tools has no effect unless"),
        ({"chat_date": "soon"}, "write a date as in"),
    ],
)
def test_setting_without_effect_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DatakitError, match=message):
        cached(tmp_path, CHATS[:1], CHATML, **settings)
