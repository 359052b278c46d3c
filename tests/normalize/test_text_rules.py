"""The text rules against a simple oracle, and the frozen table of white space."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.text_rules import WHITE_SPACE, apply_rules

SPACES = re.compile(f"[{WHITE_SPACE}]")
OTHERS = ["a", "é", "的", "🙂", "\u200b", "\ufeff", "\x1c", "\x00", "\u180e", "\u2027", "\u3001", "\u0085x"]
texts = st.lists(
    st.one_of(
        st.sampled_from(OTHERS),
        st.builds(lambda space, count: space * count, st.sampled_from(WHITE_SPACE), st.integers(1, 12)),
    ),
    max_size=12,
).map("".join)


def oracle(data: bytes, longest: int) -> str:
    """The rules, one after the other."""
    text = data.decode("utf-8", "replace").replace("\0", "")
    kept, run = [], 0
    for letter in text:
        run = run + 1 if SPACES.fullmatch(letter) else 0
        if run <= longest:
            kept.append(letter)
    return "".join(kept)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(texts.map(str.encode), st.binary(max_size=30)), max_size=8), st.sampled_from([1, 2, 3, 7, 128])
)
def test_rules_equal_the_oracle(documents: list[bytes], longest: int) -> None:
    ruled = apply_rules(pa.array(documents, pa.large_binary()), longest)
    expected = [oracle(document, longest) for document in documents]
    blank = [all(SPACES.fullmatch(letter) for letter in text) for text in expected]
    assert ruled.kept.tolist() == [not is_blank for is_blank in blank]
    kept = [text for text, is_blank in zip(expected, blank, strict=True) if not is_blank]
    assert ruled.texts.filter(pa.array(ruled.kept)).to_pylist() == kept
    assert ruled.blank == sum(blank)
    broken = [document.decode("utf-8", "ignore").encode() != document for document in documents]
    assert ruled.invalid_utf8 == sum(broken)


def test_white_space_is_the_unicode_property() -> None:
    """25 code points. Python adds four more, U+001C to U+001F."""
    assert len(WHITE_SPACE) == len(set(WHITE_SPACE)) == 25
    python = {chr(point) for point in range(0x110000) if chr(point).isspace()}
    assert python - set(WHITE_SPACE) == {"\x1c", "\x1d", "\x1e", "\x1f"}
    assert set(WHITE_SPACE) <= python
    separators = {chr(point) for point in range(0x110000) if unicodedata.category(chr(point)) in ("Zs", "Zl", "Zp")}
    assert separators <= set(WHITE_SPACE)


@pytest.mark.parametrize("space", WHITE_SPACE)
@pytest.mark.parametrize("count", [127, 128, 129, 130, 1000])
def test_runs_are_cut_at_any_offset(space: str, count: int) -> None:
    before = ["x" * length for length in (0, 1, 126, 127, 128, 129, 200)]
    ruled = apply_rules(pa.array([start + space * count + "y" for start in before], pa.large_string()), 128)
    assert ruled.texts.to_pylist() == [start + space * min(count, 128) + "y" for start in before]
    assert ruled.whitespace_runs == (len(before) if count > 128 else 0)


def test_removing_nul_can_join_two_runs() -> None:
    ruled = apply_rules(pa.array(["a" + " " * 100 + "\0" + " " * 100 + "b"], pa.large_string()), 128)
    assert ruled.texts.to_pylist() == ["a" + " " * 128 + "b"]
    assert (ruled.nul, ruled.whitespace_runs) == (1, 1)


def test_nulls_are_blank_and_slices_are_respected() -> None:
    column = pa.array(["left out", None, "a\0", "b", " ", "left out"], pa.large_string())[1:5]
    ruled = apply_rules(column, 128)
    assert ruled.kept.tolist() == [False, True, True, False]
    assert ruled.texts.filter(pa.array(ruled.kept)).to_pylist() == ["a", "b"]
    assert apply_rules(pa.array([], pa.large_string()), 128).kept.tolist() == []


def test_clean_text_is_not_copied() -> None:
    column = pa.array(["clean", "text"], pa.large_string())
    ruled = apply_rules(column, 128)
    assert ruled.texts.buffers()[2].address == column.buffers()[2].address
    assert isinstance(ruled.kept, np.ndarray)
