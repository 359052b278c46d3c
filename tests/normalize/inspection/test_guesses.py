"""The evidence for the text column, and which columns may be ids."""

from __future__ import annotations

from datakit.normalize.inspection.column_reports import ColumnReport
from datakit.normalize.inspection.guesses import can_be_id, guess_id, guess_text, text_evidence

TITLE, BODY = ColumnReport("title", "string", 1.0, 40.0), ColumnReport("body", "string", 0.5, 1920.0)


def test_evidence_names_the_share_and_the_next_column() -> None:
    assert text_evidence((TITLE, BODY), "body") == (
        "its name is usual for texts, it holds 96% of the sampled bytes, 50% of the records have it, the next column "
        "of strings is 'title' with 4%"
    )
    assert text_evidence((TITLE, BODY), "title").startswith("it holds 4% of the sampled bytes, the next")
    assert text_evidence((BODY,), "body") == "", "a single column needs no evidence"
    assert text_evidence((), "body") == ""


def test_usual_name_is_preferred_unless_it_holds_little() -> None:
    assert guess_text((ColumnReport("page", "string", 1.0, 100.0), ColumnReport("text", "string", 1.0, 30.0))) == "text"
    assert guess_text((ColumnReport("page", "string", 1.0, 100.0), ColumnReport("text", "string", 1.0, 29.0))) == "page"
    assert guess_text((ColumnReport("n", "int64", 1.0, 8.0),)) is None


def test_bytes_and_nested_columns_are_no_ids() -> None:
    kinds = [
        "string",
        "int64",
        "binary",
        "large_binary",
        "fixed_size_binary[16]",
        "list<item: int64>",
        "struct<a: int64>",
    ]
    assert [can_be_id(ColumnReport("id", kind, 1.0, 8.0)) for kind in kinds] == [True, True] + [False] * 5
    assert guess_id((ColumnReport("id", "binary", 1.0, 8.0), ColumnReport("url", "string", 1.0, 8.0))) == "url"
