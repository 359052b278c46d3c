"""The annotator `script` gives the main script of each document, and the shares of all scripts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.language.config import ScriptConfig

TEXTS = st.lists(st.one_of(st.text(max_size=20), st.text("aZ é日本ーかカя1\0", max_size=20)), max_size=6)


def annotated(texts: list[str]) -> list[dict[str, Any]]:
    annotator = ScriptConfig().annotator()
    table = annotator.annotate(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    table.validate(full=True)
    assert table.schema == annotator.schema
    return table.to_pylist()


def test_the_main_script_has_the_most_letters() -> None:
    (found,) = annotated(["Привет, мир! Hi 日"])
    assert (found["letters"], found["script"]) == (12, "Cyrl")
    assert found["share"] == pytest.approx(9 / 12)
    assert [one["script"] for one in found["scripts"]] == ["Cyrl", "Latn", "Hani"]


def test_scripts_with_equal_shares_are_in_alphabetical_order() -> None:
    (found,) = annotated(["日я"])
    assert [one["script"] for one in found["scripts"]] == ["Cyrl", "Hani"]


@pytest.mark.parametrize("text", ["", "123", " \n", "😀", "\u0301"])
def test_a_text_without_letters_has_no_script(text: str) -> None:
    assert annotated([text]) == [{"letters": 0, "script": None, "share": None, "scripts": []}]


@given(texts=TEXTS)
def test_shares_sum_to_one(texts: list[str]) -> None:
    for found in annotated(texts):
        shares = [one["share"] for one in found["scripts"]]
        assert sum(shares) == pytest.approx(1.0 if found["letters"] else 0.0)
        assert (found["share"] or 0.0) == max(shares, default=0.0)


@given(texts=TEXTS)
def test_attributes_depend_on_their_document_only(texts: list[str]) -> None:
    assert annotated(texts) == [annotated([text])[0] for text in texts]


def test_slices_of_a_batch_are_annotated() -> None:
    batch = pa.record_batch({"text": pa.array(["日", "я", "a"], pa.large_string())})
    found = ScriptConfig().annotator().annotate(batch.slice(1, 2))
    assert found["script"].to_pylist() == ["Cyrl", "Latn"]
