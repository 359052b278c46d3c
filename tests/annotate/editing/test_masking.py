"""Edited texts are those of a plain Python implementation, byte for byte."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.annotator import SPANS
from datakit.annotate.editing.masking import Action, edit
from datakit.errors import ColumnError, RecipeError

ACTIONS = {
    "a": Action("mask", "[ä]"),
    "b": Action("mask", "漢字-a-long-replacement"),
    "c": Action("cut"),
    "d": Action("drop"),
    "k": Action("keep"),
}
Span = tuple[int, int, str]


@st.composite
def annotated(draw: st.DrawFn, kinds: str = "abcdk") -> tuple[str, list[Span]]:
    """A text with spans between its characters, sorted by (start, stop, kind)."""
    text = draw(st.text(st.sampled_from("ab ä漢😀\u0301\0\n"), max_size=24))
    bounds = [len(text[:i].encode()) for i in range(len(text) + 1)]
    pairs = st.tuples(st.sampled_from(bounds), st.sampled_from(bounds), st.sampled_from(kinds))
    spans = [(min(x, y), max(x, y), kind) for x, y, kind in draw(st.lists(pairs, max_size=6)) if x != y]
    return text, sorted(spans)


def column(lists: list[list[Span]]) -> pa.Array:
    """Return spans as an annotator does."""
    rows = [[{"start": start, "stop": stop, "kind": kind} for start, stop, kind in spans] for spans in lists]
    return pa.array(rows, SPANS)


def expected(text: str, spans: list[Span]) -> str | None:
    """Return the edited text, byte by byte; None if the document is dropped."""
    if any(kind == "d" for _, _, kind in spans):
        return None
    edited = [span for span in spans if span[2] != "k"]
    groups: list[list[Span]] = []
    for span in edited:
        if groups and any(span[0] < other[1] for other in groups[-1]):
            groups[-1].append(span)
        else:
            groups.append([span])
    data = text.encode()
    for group in reversed(groups):
        cut = any(kind == "c" for _, _, kind in group)
        new = b"" if cut else ACTIONS[group[0][2]].replacement.encode()
        data = data[: group[0][0]] + new + data[max(stop for _, stop, _ in group) :]
    return data.decode()


@given(st.lists(annotated(), max_size=5), st.integers(0, 2))
@settings(max_examples=300)
def test_edited_texts_match_plain_python(batch: list[tuple[str, list[Span]]], skipped: int) -> None:
    texts = pa.array([text for text, _ in batch], pa.large_string()).slice(skipped)
    spans = column([spans for _, spans in batch]).slice(skipped)
    found = edit(texts, spans, ACTIONS)
    wanted = [expected(text, spans) for text, spans in batch[skipped:]]
    found.texts.validate(full=True)
    assert found.retained.to_pylist() == [text is not None for text in wanted]
    assert found.texts.to_pylist() == [text for text in wanted if text is not None]


@given(st.lists(annotated("k"), max_size=3))
@settings(max_examples=50)
def test_texts_whose_spans_are_kept_stay_as_they_are(batch: list[tuple[str, list[Span]]]) -> None:
    texts = pa.array([text for text, _ in batch], pa.large_string())
    found = edit(texts, column([spans for _, spans in batch]), ACTIONS)
    assert found.texts.equals(texts)
    assert found.edits.to_pylist() == [0] * len(batch)


def test_cutting_wins_over_masking() -> None:
    spans = column([[(0, 4, "a"), (3, 6, "c")]])
    assert edit(pa.array(["0123456789"]), spans, ACTIONS).texts.to_pylist() == ["6789"]


def test_adjacent_spans_are_replaced_separately_and_overlapping_ones_once() -> None:
    texts = pa.array(["0123", "0123"], pa.large_string())
    found = edit(texts, column([[(0, 2, "a"), (2, 4, "a")], [(0, 3, "a"), (2, 4, "a")]]), ACTIONS)
    assert found.texts.to_pylist() == ["[ä][ä]", "[ä]"]
    assert found.edits.to_pylist() == [2, 1]


@pytest.mark.parametrize(
    "spans", [[(1, 2, "a")], [(0, 1, "a")], [(0, 99, "a")], [(2, 2, "a")], [(2, 3, "a"), (0, 2, "a")]]
)
def test_misplaced_spans_are_refused(spans: list[Span]) -> None:
    with pytest.raises(ColumnError, match="row 1"):
        edit(pa.array(["x", "äb"], pa.large_string()), column([[], spans]), ACTIONS)


def test_a_kind_without_an_action_is_refused() -> None:
    with pytest.raises(RecipeError, match="'z' has no action"):
        edit(pa.array(["x"]), column([[(0, 1, "z")]]), ACTIONS)


def test_lists_must_belong_to_the_texts() -> None:
    with pytest.raises(ColumnError, match="2 lists of spans for 1 texts"):
        edit(pa.array(["x"]), column([[], []]), ACTIONS)
    with pytest.raises(ColumnError, match="type"):
        edit(pa.array(["x"]), pa.array([["x"]]), ACTIONS)


@pytest.mark.parametrize(("verb", "replacement"), [("mask", ""), ("cut", "x"), ("keep", "x"), ("erase", "")])
def test_actions_without_sense_are_refused(verb: str, replacement: str) -> None:
    with pytest.raises(RecipeError):
        Action(verb, replacement)  # pyright: ignore[reportArgumentType]
