"""The table of word characters is frozen; it differs from Python's own only as listed here."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import xxhash

from datakit.text.unicode_words import ALONE, CHARACTER, CODE_POINTS, UNICODE_VERSION, WORD, character_table

# Prefixes of the names of characters that are words of their own.
SCRIPTS = (
    "THAI ",
    "LAO ",
    "TIBETAN ",
    "MYANMAR ",
    "KHMER ",
    "CJK ",
    "HIRAGANA ",
    "HENTAIGANA ",
    "KATAKANA",
    "HALFWIDTH",
)
IDEOGRAPHIC = ("IDEOGRAPHIC ", "HANGZHOU NUMERAL", "VERTICAL ", "MASU MARK", "OLD CHINESE ITERATION MARK")


def version(text: str) -> tuple[int, ...]:
    """Parse a Unicode version for comparison."""
    return tuple(map(int, text.split(".")))


RUNNING = version(unicodedata.unidata_version)
# Number of word characters in the table that `re` lacks, by Unicode version (of Python 3.11, 3.12, 3.13).
MORE_THAN_RE: dict[tuple[int, ...], int] = {(14, 0, 0): 5010, (15, 0, 0): 622, (15, 1, 0): 0}


def test_the_table_never_changes() -> None:
    digest = xxhash.xxh3_128_hexdigest(character_table().astype("<u4").tobytes())
    assert digest == "afa749815491b245736eaba40a77aac5"
    assert character_table().shape == (CODE_POINTS,)


def test_word_characters_match_re_except_unknown_ones() -> None:
    pattern = re.compile(r"\w")
    by_re = np.array([pattern.match(chr(point)) is not None for point in range(CODE_POINTS)])
    by_table = character_table() > 0
    only_re, only_table = np.flatnonzero(by_re & ~by_table), np.flatnonzero(by_table & ~by_re)
    unknown_here = [point for point in only_table if unicodedata.category(chr(point)) == "Cn"]
    assert list(only_table) == unknown_here, "the table has word characters that are something else in this Python"
    if version(UNICODE_VERSION) >= RUNNING:
        assert not len(only_re)
    if version(UNICODE_VERSION) == RUNNING:
        assert not len(only_table)
    assert len(only_table) == MORE_THAN_RE.get(RUNNING, len(only_table))


def test_lower_case_matches_str_lower_except_one() -> None:
    table = character_table()
    differing = [
        point
        for point in np.flatnonzero(table > 0)
        if unicodedata.category(chr(point)) != "Cn" and chr(table[point] & CHARACTER) != chr(point).lower()
    ]
    assert differing == [0x130], "LATIN CAPITAL LETTER I WITH DOT ABOVE, two characters in str.lower"
    assert chr(table[0x130] & CHARACTER) == "i"


def test_lower_case_ignores_the_context_of_sigma() -> None:
    lowered = "".join(chr(character_table()[ord(character)] & CHARACTER) for character in "ΟΔΟΣ")
    assert (lowered, "ΟΔΟΣ".lower()) == ("οδοσ", "οδος")


def test_lower_case_is_idempotent() -> None:
    table = character_table()
    words = table[table > 0]
    again = table[words & CHARACTER]
    assert np.array_equal(words & CHARACTER, again & CHARACTER)
    assert np.array_equal(words & (WORD | ALONE), again & (WORD | ALONE)), (
        "a character and its lower case have the same flag"
    )


def test_characters_of_spaceless_scripts_are_words() -> None:
    alone = np.flatnonzero(character_table() & ALONE)
    known = [point for point in alone if unicodedata.category(chr(point)) != "Cn"]
    assert all(unicodedata.name(chr(point)).startswith(SCRIPTS + IDEOGRAPHIC) for point in known)
    for character in "漢字々〇ひらがなカタカナーｶﾅไทยລາວខ្មែរမြန်မာབོད༠๙":
        expected = re.match(r"\w", character) is not None  # vowel signs are marks, which are not word characters
        assert bool(character_table()[ord(character)] & ALONE) == expected, character


def test_other_scripts_have_words_of_many_characters() -> None:
    for character in "aZ9_éßЖωשع한ꦗअ":
        assert character_table()[ord(character)] & WORD
    for character in " .,-'\n\u00a0\u200b\u3000，。（—😀\u0301":
        assert character_table()[ord(character)] == 0
