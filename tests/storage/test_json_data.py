"""Whatever is wrong with JSON, one kind of error says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from datakit.storage.json_data import decode


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"{", "truncated"),
        (b"", "truncated"),
        (b"[1]", "Expected `object`"),
    ],
    ids=["arrays", "objects", "bytes", "cut", "empty", "type"],
)
def test_wrong_data_raises_a_decode_error(data: bytes, words: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=words):
        decode(data, dict[str, Any])


def test_right_data_is_decoded() -> None:
    assert decode(b'{"a": 1}', dict[str, int]) == {"a": 1}
