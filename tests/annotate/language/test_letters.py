"""The table of letters is frozen, and the kernels count what a loop over characters counts."""

from __future__ import annotations

import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.language.letters import CODE_POINTS, NO_LETTER, count_scripts, find_letters, scripts
from datakit.text.string_buffers import string_buffers

DIGEST = "e8acad745161dfd21780c918bb3082e5"
TEXTS = st.lists(st.one_of(st.text(max_size=20), st.text("aZ é日本ーかカя٣א1😀\0\u0301𝐀", max_size=20)), max_size=5)


def script_of(character: str) -> str | None:
    names, table = scripts()
    entry = int(table[ord(character)])
    return names[entry - 1] if entry else None


def counted(texts: list[str]) -> list[tuple[int, list[tuple[str, int]]]]:
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    names, table = scripts()
    letters, ends = np.zeros(len(texts), np.int64), np.zeros(len(texts) + 1, np.int64)
    found, counts = np.empty(len(data), np.uint8), np.empty(len(data), np.int64)
    count_scripts(data, offsets, table, int(table[ord("a")]), letters, ends, found, counts)
    return [
        (int(letters[i]), [(names[found[j]], int(counts[j])) for j in range(ends[i], ends[i + 1])])
        for i in range(len(texts))
    ]


def test_the_table_never_changes() -> None:
    names, table = scripts()
    assert len(names) == 160
    assert xxhash.xxh3_128_hexdigest("".join(names).encode() + table.tobytes()) == DIGEST


def test_letters_are_those_of_unicode() -> None:
    """A later version of Python knows more letters, an earlier one fewer, but they agree on those that both know."""
    _, table = scripts()
    python = np.array([unicodedata.category(chr(point)).startswith("L") for point in range(CODE_POINTS)])
    known = np.array([unicodedata.category(chr(point)) != "Cn" for point in range(CODE_POINTS)])
    ours = table != NO_LETTER
    if tuple(map(int, unicodedata.unidata_version.split("."))) <= (15, 1, 0):
        assert (ours[known] == python[known]).all()
    else:
        assert python[ours].all()


@pytest.mark.parametrize(
    ("character", "script"),
    [("a", "Latn"), ("ß", "Latn"), ("я", "Cyrl"), ("א", "Hebr"), ("日", "Hani"), ("か", "Hira"), ("カ", "Kana"),
     ("한", "Hang"), ("ー", "Zyyy"), ("𝐀", "Zyyy"), ("ก", "Thai"), ("1", None), ("😀", None), ("\u0301", None)],
)  # fmt: skip
def test_letters_belong_to_their_script(character: str, script: str | None) -> None:
    assert script_of(character) == script


@given(texts=TEXTS)
def test_counts_are_those_of_a_loop(texts: list[str]) -> None:
    for text, (letters, found) in zip(texts, counted(texts), strict=True):
        expected = Counter(script for script in map(script_of, text) if script)
        assert letters == expected.total()
        assert found == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))


@given(texts=TEXTS)
def test_letters_are_found_where_there_are_any(texts: list[str]) -> None:
    data, offsets = string_buffers(pa.array(texts, pa.large_string()))
    found = np.zeros(len(texts), bool)
    find_letters(data, offsets, scripts().table, found)
    assert found.tolist() == [any(map(script_of, text)) for text in texts]
