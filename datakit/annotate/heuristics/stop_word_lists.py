"""Reads the lists of stop words: Gopher's English one, and those of FineWeb-2 by language and script."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path

from datakit.errors import RecipeError, suggestion

FILE = Path(__file__).with_name("stop_words.toml")
GOPHER = "gopher"


@functools.cache
def stop_word_lists() -> dict[str, tuple[str, ...]]:
    """Return all lists by name."""
    return {name: tuple(words) for name, words in tomllib.loads(FILE.read_text(encoding="utf-8")).items()}


def check_lists(names: Sequence[str]) -> None:
    """Raise RecipeError if a list is unknown or named twice."""
    known = stop_word_lists()
    for number, name in enumerate(names):
        if name not in known:
            raise RecipeError(f"stop_words: unknown list {name!r}; {suggestion(name, known)}")
        if name in names[:number]:
            raise RecipeError(f"stop_words: {name!r} is listed twice; remove one of them")
