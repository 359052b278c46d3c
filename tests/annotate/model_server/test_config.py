"""Settings that would send texts or keys to the wrong place are refused; only some settings enter the fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datakit.annotate.model_server.config import OPERATIONS, ModelServerConfig
from datakit.errors import RecipeError
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import parse_recipe

GOOD = {"url": "https://models.example.org/v1", "model": "m", "prompt": "{text}", "number": [0, 5]}


def configured(table: Any, name: str = "quality", **more: Any) -> Any:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}],
                "annotate": {"model_server": {name: table}, **more}}  # fmt: skip
    return configure(parse_recipe(document, "example", Path("/folder")))["annotate"]["a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": None}, "url"),
        ({"url": "models.example.org"}, "must have the form https://host/v1"),
        ({"url": "ftp://models.example.org"}, "must have the form"),
        ({"url": "https://:80/v1"}, "must have the form"),
        ({"url": "https://host:x/v1"}, "not a valid URL"),
        ({"url": "http://models.example.org/v1"}, "unencrypted"),
        ({"url": "http://127.0.0.1.example.org/v1"}, "unencrypted"),
        ({"url": "http://localhost.example.org/v1"}, "unencrypted"),
        ({"url": "https://user:word@host/v1"}, "must not contain a user name"),
        ({"url": "https://host/v1?key=abc"}, "must not contain a user name"),
        ({"model": ""}, "model is empty"),
        ({"prompt": "Rate it."}, "exactly once"),
        ({"prompt": "{text}{text}"}, "exactly once"),
        ({"labels": ["a"]}, "exactly one of"),
        ({"parameters": {"stream": True}}, "must not contain 'stream'"),
        ({"structured": True}, "structured needs `fields`"),
        ({"max_bytes": 10}, "max_bytes is 10"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"attempts": 0}, "attempts is 0"),
        ({"max_requests": -1}, "max_requests is -1"),
        ({"max_cost": 1.0}, "max_cost needs price"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"key_env": "sk-0123456789abcdef"}, "must be the name of an environment variable"),
        ({"key_env": "MY_LLM"}, "KEY, TOKEN or SECRET"),
        ({"api_key": "sk-1"}, "api_key"),
    ],
    ids=str,
)
def test_mistakes_are_refused(change: dict[str, Any], message: str) -> None:
    table = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(RecipeError, match=message) as caught:
        configured(table)
    assert "sk-0123456789abcdef" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:8000/v1"])
def test_this_machine_needs_no_encryption(url: str) -> None:
    assert configured({**GOOD, "url": url}).content["annotators"]["quality"]["url"] == url


def test_limits_and_keys_do_not_enter_the_fingerprint() -> None:
    settings = configured(GOOD)
    others = configured(
        {**GOOD, "key_env": "A_KEY", "concurrency": 3, "max_requests": 7, "timeout": 5.0, "attempts": 9}
    )
    assert settings.content == others.content and not {*OPERATIONS} & settings.content["annotators"]["quality"].keys()
    assert others.operations["paths"]["quality"]["max_requests"] == 7


@pytest.mark.parametrize(
    "change",
    [{"model": "n"}, {"prompt": "x {text}"}, {"number": [0, 4]}, {"max_bytes": 2048}, {"version": 2}, {"system": "s"},
     {"max_tokens": 3}, {"parameters": {}}, {"url": "https://other.example.org/v1"}],
    ids=str,
)  # fmt: skip
def test_what_determines_an_answer_enters_the_fingerprint_and_the_name_of_the_store(change: dict[str, Any]) -> None:
    assert configured(GOOD).content != configured({**GOOD, **change}).content
    one, other = (ModelServerConfig(**values) for values in (GOOD, {**GOOD, **change}))
    assert one.store_name() != other.store_name()


def test_a_model_is_no_path() -> None:
    assert configured(GOOD).content["annotators"]["quality"]["model"] == "m"


@pytest.mark.parametrize("name", ["language", "Bad", "a-b", "a.b", ""])
def test_names_that_no_table_of_attributes_can_have_are_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="cannot be the name of a table of attributes"):
        configured(GOOD, name)


def test_two_annotators_of_one_name_are_refused() -> None:
    with pytest.raises(RecipeError, match="two annotators have the name 'quality'"):
        configured(GOOD, user={"quality": {"function": "mine:f"}})


def test_rules_can_read_the_attributes() -> None:
    document = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "annotate": {"model_server": {"quality": GOOD}},
                "rules": [{"name": "r", "where": "quality.score < 2"}]}  # fmt: skip
    assert "rules" in configure(parse_recipe(document, "example", Path("/")))
