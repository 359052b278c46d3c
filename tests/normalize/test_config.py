"""The configuration refuses invalid values."""

from __future__ import annotations

from typing import Any

import pytest

from datakit.errors import RecipeError
from datakit.normalize.config import LARGEST_DOCUMENT, Config


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample": 0},
        {"whitespace_run": 0},
        {"transform": "no"},
        {"format": "jsno"},
        {"transform": "a:b"},
        {"max_document_bytes": LARGEST_DOCUMENT + 1},
    ],
)
def test_invalid_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        Config(**wrong)
