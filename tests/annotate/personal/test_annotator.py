"""The annotator returns one list of spans per document, and refuses settings and batches that it cannot use."""

from __future__ import annotations

import pyarrow as pa
import pytest

from datakit.annotate.annotator import SPANS, Annotator
from datakit.annotate.personal.config import PersonalConfig
from datakit.annotate.personal.kinds import KINDS
from datakit.errors import ColumnError, RecipeError
from datakit.toml_config import decoded


def batch(*texts: str | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(texts, kind or pa.large_string())], names=["text"])


def test_spans_are_bytes_of_the_text() -> None:
    found = PersonalConfig().annotator().annotate(batch("", "über a@b.de, 8.8.4.4", "x"))
    found.validate(full=True)
    assert found.schema.field("spans").type.equals(SPANS)
    assert found["spans"].to_pylist() == [
        [],
        [{"start": 6, "stop": 12, "kind": "email"}, {"start": 14, "stop": 21, "kind": "ipv4"}],
        [],
    ]


def test_slices_of_batches_are_read_at_their_place() -> None:
    whole = batch("a@b.de", "x a@b.de", "xyz a@b.de", "é a@b.de")
    found = PersonalConfig().annotator().annotate(whole.slice(1, 2))["spans"].to_pylist()
    assert [(spans[0]["start"], spans[0]["stop"]) for spans in found] == [(2, 8), (4, 10)]


def test_a_batch_without_documents_has_no_rows() -> None:
    assert PersonalConfig().annotator().annotate(batch()).num_rows == 0


def test_the_annotator_says_what_it_does() -> None:
    annotator: Annotator = PersonalConfig(("phone", "email")).annotator()
    assert (annotator.name, annotator.columns, annotator.sparse) == ("personal", ("text",), True)
    assert annotator.parameters == {"kinds": ["email", "phone"]}


def test_kinds_are_all_kinds_in_alphabetical_order() -> None:
    assert PersonalConfig().kinds == KINDS == tuple(sorted(KINDS))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [(["emial"], "did you mean 'email'"), ([], "kinds is empty"), (["jwt", "jwt"], "listed twice"), ([1], "str")],
)
def test_wrong_kinds_are_refused(kinds: list[object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        decoded({"kinds": kinds}, PersonalConfig, "[annotate.personal]")


def test_batches_without_usable_texts_are_refused() -> None:
    annotator = PersonalConfig().annotator()
    with pytest.raises(ColumnError, match="no column 'text'"):
        annotator.annotate(pa.RecordBatch.from_arrays([pa.array(["x"])], names=["body"]))
    with pytest.raises(ColumnError, match="type int64"):
        annotator.annotate(batch(kind=pa.int64()))
    with pytest.raises(ColumnError, match="1 nulls"):
        annotator.annotate(batch("x", None))
