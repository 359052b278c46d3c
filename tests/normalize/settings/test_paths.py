"""Paths are parsed into names, and what is not a path is refused."""

from __future__ import annotations

import pytest

from datakit.errors import RecipeError
from datakit.normalize.settings.paths import parse_path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a",)),
        ("response.body.text", ("response", "body", "text")),
        ("choices.0.message", ("choices", "0", "message")),
        ('"a.b".c', ("a.b", "c")),
        ('a."say ""hi""".c', ("a", 'say "hi"', "c")),
        ("two words. é", ("two words", " é")),
    ],
)
def test_a_path_is_a_list_of_names(text: str, parts: tuple[str, ...]) -> None:
    path = parse_path(text, "text")
    assert (path.whole, path.parts, path.column) == (text, parts, parts[0])


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", '"a', '"a"b', 'a"b', '""', "a\n."])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"text\.columns: .* is not a path"):
        parse_path(text, "text.columns")
