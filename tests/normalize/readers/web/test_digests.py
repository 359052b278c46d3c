"""Digests in base 32: read as by Python's base64 module, which takes many times as long."""

from __future__ import annotations

import base64
import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.normalize.readers.web.digests import check_digest, from_base_32
from datakit.normalize.readers.web.errors import BrokenRecordError

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@given(
    st.text(ALPHABET + ALPHABET.lower() + "0189=_+- ", min_size=32, max_size=32)
    | st.text(ALPHABET, min_size=32, max_size=32)
)
def test_digits_mean_what_they_mean_to_base64(digits: str) -> None:
    try:
        expected = base64.b32decode(digits.upper())
    except binascii.Error:
        expected = None
    if "=" not in digits:
        assert from_base_32(digits.encode(), 20) == expected


@pytest.mark.parametrize("wrong", ["A" * 32, "a" * 31 + "7"])
def test_wrong_digest_breaks_the_record(wrong: str) -> None:
    with pytest.raises(BrokenRecordError, match="digest"):
        check_digest(f"sha1:{wrong}", b"block")


def test_what_is_no_base_32_is_not_compared() -> None:
    for digits in ("0" + "A" * 31, "A" * 30 + "_A", "é" + "A" * 31):
        check_digest(f"sha1:{digits}", b"block")
