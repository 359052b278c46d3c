"""Settings of columns that contradict each other are refused, with the name of the column."""

from __future__ import annotations

from typing import Any

import pytest

from datakit.errors import RecipeError
from datakit.normalize.columns.output_columns import EDITED
from datakit.normalize.columns.upstream_columns import LEADING
from datakit.normalize.config import LATER, Config, content
from datakit.normalize.settings.column_settings import RESERVED


def test_the_reserved_columns_are_those_that_datakit_writes() -> None:
    assert {*LEADING.names, EDITED.name} == {*RESERVED}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": ("a",), "drop": ("a",)}, "keep and drop: both name the column 'a'"),
        ({"rename": {"a": "text"}}, "'a' cannot be named 'text'"),
        ({"rename": {"a": "edited_id"}}, "'a' cannot be named 'edited_id'"),
        ({"rename": {"a": ""}}, "'a' cannot be named ''"),
        ({"rename": {"a": "c", "b": "c"}}, "two columns would be named 'c'"),
        ({"rename": {"body": "b"}, "text": "body"}, "'body' is the text column"),
        ({"rename": {"url": "b"}, "id": "url"}, "'url' is the id column"),
        ({"rename": {"a": "b"}, "drop": ("a",)}, "'a' is left out by `drop`"),
        ({"rename": {"a": "b"}, "keep": ("c",)}, "'a' is left out by `keep`"),
        ({"conflicts": {"a": "sting"}}, "the policy 'sting' of 'a' is unknown; did you mean 'string'"),
        ({"conflicts": {"text": "string"}}, "'text' is read by `text`"),
        ({"conflicts": {"m": "null"}, "text": "m.t"}, "'m' is read by `text`"),
        ({"conflicts": {"id": "string"}}, "'id' is the id column"),
        ({"sample_seed": 1}, "sample_seed is 1; it must be at least 0, and needs a `sample` below 1"),
        ({"sample_seed": -1, "sample": 0.5}, "sample_seed is -1"),
        ({"limit": 0}, "limit is 0; it must be at least 1"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Config(**settings)
    assert message in str(caught.value)


def test_later_settings_enter_the_content_only_if_they_are_set() -> None:
    assert not {*content(Config())} & {*LATER}
    used = Config(keep=("a",), sample=0.5, sample_seed=0, limit=1, conflicts={"b": "null"}, rename={"a": "c"})
    assert {*content(used)} & {*LATER} == {"keep", "sample_seed", "limit", "conflicts", "rename"}
