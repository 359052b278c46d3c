"""TOML files are decoded strictly, and errors name the file, the key and the nearest valid name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from datakit.errors import LoaderError, RecipeError
from datakit.toml_config import decoded, read_toml, toml_value


@dataclass(frozen=True)
class Options:
    """A table's options."""

    threshold: float
    bands: int = 14


def test_table_is_decoded_with_defaults() -> None:
    assert decoded({"threshold": 0.5}, Options, "[dedup]") == Options(0.5, 14)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"treshold": 1}, r"\[dedup\]: unknown key 'treshold'; did you mean 'threshold'\?"),
        ({"enabeld": 1}, r"did you mean 'enabled'\?"),
        ({}, r"\[dedup\]: 'threshold' is missing"),
        ({"threshold": "much"}, r"\[dedup\]: threshold: Expected `float`, got `str`"),
        (3, r"\[dedup\] must be a table"),
    ],
)
def test_mistake_in_a_table_names_the_key(table: object, message: str) -> None:
    with pytest.raises(LoaderError, match=message):
        decoded(table, Options, "[dedup]", LoaderError, other_keys=["enabled"])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"name = ", "is not valid TOML"), (b"\xff\xfe", "is not UTF-8"), (None, "does not exist; give a recipe")],
)
def test_unreadable_file_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "shelf.toml").write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        read_toml(tmp_path / "shelf.toml", "give a recipe")


@pytest.mark.parametrize(
    ("text", "value"), [("0.9", 0.9), ('["a", "b"]', ["a", "b"]), ("word", "word"), ("true", True), ('"1"', "1")]
)
def test_shell_value_is_toml_or_a_string(text: str, value: object) -> None:
    assert toml_value(text) == value
