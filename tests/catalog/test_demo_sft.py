"""The recipe `demo-sft` makes conversations from Python code, with the tokenizer of the recipe `demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers

import datakit
from datakit.cache.reader import open_cache
from datakit.catalog.demo_conversations import questions
from datakit.errors import TokenizerError
from datakit.recipe import Recipe, load_recipe
from datakit.storage.urls import read_bytes
from datakit.toml_config import read_toml
from datakit.trainer.run_file import RUNS
from tests.support.tokens.chat_tokens import targets

CODE = '''
"""A module."""

def bake(cake, *, minutes: int = 30) -> None:
    """Put a cake into the oven, and take it out
    after some minutes.

    More about cakes.
    """

def _hidden():
    """This function has documentation, but nobody should call it."""

class Oven:
    """Something that is hot inside, and in which cakes become brown."""

    def heat(self, degrees):
        """Make the inside of the oven as hot as a number of degrees says."""

    def short(self):
        """Too short."""
'''
BAKED = "Put a cake into the oven, and take it out after some minutes."


def conversations(path: str, code: str) -> list[list[tuple[str, str]]]:
    batch = pa.record_batch({"id": [path], "text": [code.encode()]})
    found = questions(batch).column("messages").to_pylist()
    return [[(turn["role"], turn["content"]) for turn in one] for one in found]


def test_documented_functions_and_classes_become_conversations() -> None:
    bake, oven, heat = conversations("food/kitchen/__init__.py", CODE)
    assert bake == [
        ("user", "What does food.kitchen.bake do?"),
        ("assistant", BAKED),
        ("user", "How is it called?"),
        ("assistant", "food.kitchen.bake(cake, *, minutes: int=30)"),
    ]
    assert oven[0] == ("user", "What does food.kitchen.Oven do?") and len(oven) == 2
    assert heat[3][1] == "food.kitchen.Oven.heat(self, degrees)"


def test_code_that_cannot_be_parsed_has_no_conversations() -> None:
    assert conversations("broken.py", "def (:") == conversations("null.py", "a\0") == []


def recipe(name: str, folder: Path) -> Recipe:
    """A recipe of the catalog that reads only the files in a folder."""
    found = load_recipe(name)
    (source,) = (one for one in found.sources if one.name in ("questions", "stdlib-code"))
    return replace(found, sources=(replace(source, url=str(folder)),), dedup=None)


def test_recipe_needs_the_demo_and_uses_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "kitchen.py").write_text(CODE)
    root = str(tmp_path / "root")
    with pytest.raises(TokenizerError, match="no token cache, whose tokenizer the recipe uses; run `datakit run demo`"):
        datakit.run(recipe("demo-sft", tmp_path / "code"), root=root, workers=1)
    base = datakit.run(recipe("demo", tmp_path / "code"), root=root, workers=1)
    tuned = datakit.run(recipe("demo-sft", tmp_path / "code"), root=root, workers=1)
    caches = [open_cache(one.steps_of("tokenize")[0].directory) for one in (base, tuned)]
    assert caches[0].contract.tokenizer_sha256 == caches[1].contract.tokenizer_sha256
    found = targets(caches[1], tokenizers.Tokenizer.from_str(read_bytes(caches[1].tokenizer_url).decode()))
    assert any(texts[0] == f"{BAKED}<|im_end|>" for texts in found.values())


def test_run_continues_the_model_of_the_demo() -> None:
    base, tuned = (read_toml(RUNS / f"{name}.toml", "") for name in ("demo", "demo-sft"))
    assert tuned["initialize_from"] == f"{{root}}/{base['name']}"
    assert tuned["model"] == base["model"]
    assert {one["cache"] for one in tuned["data"]["components"].values()} == {"{root}/demo-sft"}
