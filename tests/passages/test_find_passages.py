"""Passages are divided and compared as docs/passages.md says, however many are found at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.passages import find_passages as module
from datakit.passages.config import SearchConfig
from datakit.passages.find_passages import find_passages, rules_of
from datakit.passages.hashing import BLOCK, hash_128
from tests.support.passages.reference import normal_form, passages_of


def hash_of(data: bytes, seed: int = 0) -> str:
    words = np.zeros(2 * (len(data) // BLOCK + 1), np.uint64)
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    high, low = hash_128(words, len(data), np.uint64(seed))
    return f"{int(high):016x}{int(low):016x}"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        (b"hello, world", "342fac623a5ebc8e4cdcbc079642414d"),
        (b"The quick brown fox jumps over the lazy dog", "e34bbc7bbc071b6c7a433ca9c49a9347"),
    ],
)
def test_hash_has_the_published_values(data: bytes, expected: str) -> None:
    assert hash_of(data) == expected


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_different_bytes_have_different_hashes(one: bytes, other: bytes) -> None:
    assert (hash_of(one) == hash_of(other)) == (one == other)


characters = st.sampled_from("aBß1é,— \t\r\n\n\u3000\x85\x1c日😀ȺİΣ")
texts = st.lists(st.text(characters, max_size=30), max_size=5)
kinds = st.sampled_from([pa.string(), pa.large_string()])
ignored = st.lists(st.sampled_from(["white_space", "case", "digits", "punctuation"]), unique=True)


@settings(max_examples=300, deadline=None)
@given(texts, st.sampled_from(["line", "paragraph"]), ignored, st.integers(1, 3), st.data())
def test_passages_are_those_of_the_reference(
    texts: list[str], unit: str, ignore: list[str], least: int, data: st.DataObject
) -> None:
    kind, batch = data.draw(kinds), data.draw(st.integers(1, 9))
    rules = rules_of(SearchConfig(unit, ignore=tuple(ignore), min_bytes=least), 3)
    column = pa.chunked_array([pa.array(texts, kind), pa.array(["x\ny"], kind)]).slice(0, len(texts))
    found = []
    for one in find_passages(column, rules, batch):
        assert 0 < len(one.texts) <= batch
        hashes = [f"{high:016x}{low:016x}" for high, low in zip(one.high.tolist(), one.low.tolist(), strict=True)]
        found += zip(one.texts.tolist(), one.starts.tolist(), one.stops.tolist(), hashes, strict=True)
    expected = [
        (number, len(text[:start].encode()), len(text[:stop].encode()), hash_of(normal_form(passage, ignore), 3))
        for number, text in enumerate(texts)
        for start, stop, passage in passages_of(text, unit)
        if len(normal_form(passage, ignore)) >= least
    ]
    assert found == expected


def test_searches_do_not_share_hashes() -> None:
    column, search = pa.array(["some line"]), SearchConfig("line", min_bytes=1)
    (one,), (other,) = (list(find_passages(column, rules_of(search, number))) for number in (0, 1))
    assert one.high[0] != other.high[0]


def test_text_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 5)
    with pytest.raises(Exception, match="a text has 6 bytes"):
        list(find_passages(pa.array(["a", "123456"]), rules_of(SearchConfig("line"), 0)))


def test_no_call_compiles_after_warming_up() -> None:
    module.warm()
    before = len(module.kernels.find_passages.signatures)
    column = pa.array(["a\n\nb", "c"], pa.large_string())
    for texts in (column, column.slice(1), column.cast(pa.string()), pa.chunked_array([column, column.slice(1)])):
        for ignore in ((), ("case", "punctuation", "digits", "white_space")):
            for unit in ("line", "paragraph"):
                list(find_passages(texts, rules_of(SearchConfig(unit, ignore=ignore), 5)))
    assert len(module.kernels.find_passages.signatures) == before
