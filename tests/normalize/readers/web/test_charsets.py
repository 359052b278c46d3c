"""Charsets of pages."""

from __future__ import annotations

import pytest

from datakit.normalize.readers.web.charsets import charset_of, text_of

RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 5
META = b'<html><head><meta charset="koi8-r"></head>'


@pytest.mark.parametrize(
    ("payload", "stated", "charset"),
    [
        (b"\xef\xbb\xbfabc", "iso-8859-1", "utf-8"),
        (b"\xff\xfea\0", "utf-8", "utf-16-le"),
        (b"\xfe\xff\0a", None, "utf-16-be"),
        (META + RUSSIAN.encode("cp1251"), "windows-1251", "cp1251"),
        (META + RUSSIAN.encode("koi8-r"), None, "koi8-r"),
        (META + RUSSIAN.encode("koi8-r"), "no-such-charset", "koi8-r"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">', None, "shift_jis"),
        (b'<meta charset="utf-16">' + b"abc", None, "utf-8"),
        (b'<!-- <meta charset="koi8-r"> --><meta charset="cp1251">' + RUSSIAN.encode("cp1251"), None, "cp1251"),
        (b'<!-- <meta charset="koi8-r"> ' + b"x" * 1024 + b"-->" + RUSSIAN.encode(), None, "utf-8"),
        (b" " * 1024 + META + "é".encode(), None, "utf-8"),
        (RUSSIAN.encode(), None, "utf-8"),
        (RUSSIAN.encode("cp1251"), None, "cp1251"),
        (b"caf\xe9", "latin1", "cp1252"),
        (b"", None, "utf-8"),
        (b"abc", "utf-7", "utf-8"),
    ],
)
def test_charset_by_the_stated_rule(payload: bytes, stated: str | None, charset: str) -> None:
    assert charset_of(payload, stated, True) == charset


def test_meta_counts_only_in_html() -> None:
    assert charset_of(META, None, False) == "utf-8"


def test_invalid_bytes_are_replaced_and_reported() -> None:
    assert text_of(b"a\xffb", "utf-8") == ("a\ufffdb", True)
    assert text_of(b"\xef\xbb\xbfa", "utf-8") == ("a", False)
    assert text_of("a\ud83d\ude00".encode("utf-16-le", "surrogatepass"), "utf-16-le") == ("a😀", False)
    assert text_of(b"\x00\xd8a\0", "utf-16-le")[1], "a lone surrogate is invalid"
