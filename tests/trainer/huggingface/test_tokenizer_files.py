"""An exported tokenizer puts around a text what the contract puts around a document, apart from its end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

pytest.importorskip("tokenizers")
from tokenizers import Tokenizer

from datakit.cache.contract import AS_TEXT, ChatTemplate, Contract
from datakit.errors import TokenizerError
from datakit.trainer.huggingface.tokenizer_files import (
    exported_tokenizer,
    special_ids,
    special_tokens_map,
    tokenizer_config,
)
from tests.support.caches import contract_of, trained
from tests.support.hub_models.tokenizers import PROCESSORS, with_processor

ENDS = {"none": {}, "eos": {}, "bos": {"bos": "<s>"}, "both": {"bos": "<s>"}}


def contract(data: bytes, add: str) -> Contract:
    return contract_of(data, add, **ENDS[add])


@pytest.mark.parametrize("add", [*ENDS])
@pytest.mark.parametrize("name", [*PROCESSORS])
def test_a_prompt_begins_as_documents_did(name: str, add: str) -> None:
    data = with_processor(PROCESSORS[name])
    wanted = contract(data, add)
    exported = exported_tokenizer(data, wanted, "x")
    before, after = Tokenizer.from_str(data.decode()), Tokenizer.from_str(exported.decode())
    for golden in wanted.golden:
        assert before.encode(golden.text, add_special_tokens=False).ids == golden.ids
        begin = [wanted.bos.id] if wanted.bos else []
        assert after.encode(golden.text).ids == begin + golden.ids
        assert after.encode(golden.text, golden.text).ids == begin + golden.ids * 2
        assert after.encode(golden.text, add_special_tokens=False).ids == golden.ids
    same = {key: value for key, value in json.loads(exported).items() if key != "post_processor"}
    assert same == {key: value for key, value in json.loads(data).items() if key != "post_processor"}
    assert exported_tokenizer(exported, wanted, "x") == exported  # a right file is copied byte for byte


def test_the_chat_template_of_the_conversations_is_exported() -> None:
    plain = contract(trained(), "eos")
    assert "chat_template" not in tokenizer_config(plain, 9)
    for tool_use, expected in (
        ("", "a"),
        ("b", [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]),
    ):
        template = ChatTemplate("", "a", tool_use, {}, "")
        rendering = msgspec.structs.replace(plain, chat_template=template)
        assert tokenizer_config(rendering, 9)["chat_template"] == expected


def test_a_right_file_is_copied() -> None:
    assert exported_tokenizer(trained(), contract_of(trained()), "x") == trained()


def test_another_file_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"x is not a tokenizer.json, so the model cannot be exported"):
        exported_tokenizer(b"my own format", contract_of(trained()), "x")


@pytest.mark.parametrize(
    ("add", "ids"), [("none", (None, None)), ("eos", (None, 0)), ("bos", (400, None)), ("both", (400, 0))]
)
def test_ids_are_stated_even_if_there_are_none(add: str, ids: tuple[Any, Any]) -> None:
    found = contract(with_processor(None), add)
    assert special_ids(found) == {"bos_token_id": ids[0], "eos_token_id": ids[1], "pad_token_id": None}
    named = special_tokens_map(found)
    assert {*named} == {name for name, id in zip(("bos_token", "eos_token"), ids, strict=True) if id is not None}
    config = tokenizer_config(found, 64)
    assert (config["model_max_length"], config["add_bos_token"], config["add_eos_token"]) == (
        64,
        add in ("bos", "both"),
        False,
    )
    assert named.items() <= config.items()
    assert "split_special_tokens" not in config


def test_special_strings_as_text_are_stated() -> None:
    found = msgspec.structs.replace(contract_of(trained()), special_strings=AS_TEXT)
    assert tokenizer_config(found, None)["split_special_tokens"] is True
    assert "model_max_length" not in tokenizer_config(found, None)
