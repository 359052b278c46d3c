"""Searching a megabyte of anything ends, with the right result; benchmarks/personal.py shows that time is linear."""

from __future__ import annotations

import pytest

from tests.support.annotate.planting import spans_of

SIZE = 1_000_000
NOTHING = [
    "a", "1", "0", " ", "\n", "@", ":", "=", "-", ".", "+", "_", "\0", "é", "漢", "😀", "\u0301", "A", "B", "x", "J",
    "a@", "@a", "a.", "a@b.", "a@@b.de", "1.", "1.2.3.4.", "1 ", "12-", "(1) ", "+1", "+49 ", "00", "0 1", "::", "a:",
    "1:", "ab:cd::", "DE", "DE89", "DE89 3704 ", "4111 ", "4111111111111111", "3782-", "AKIA", "AIza", "ghp_", "eyJ",
    "eyJ.", "xoxb-", "sk_live_", "github_pat_", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----\n", "-----END ",
    "token=", "token='", "key: ", "password: aaaaaaaaaaaaaaaaaaaa ", "http://a:", "//", "tel ", "1\u00a0", "1)(",
]  # fmt: skip
FOUND = {  # pieces that are findings when repeated, and the kind
    "a@b.de ": "email",
    "8.8.4.4 ": "ipv4",
    "2a00:1450::8 ": "ipv6",
    "+49 30 1234567, ": "phone",
    "4111 1111 1111 1111, ": "card",
    "DE89 3704 0044 0532 0130 00, ": "iban",
    "AKIAQWERTYUIOPASDFGH ": "aws_key",
    "api_key='a8Gf5Kq2zX9pLw7Rt3Vb' ": "secret",
    "xoxb-1234567890-abc ": "slack_token",
}


@pytest.mark.parametrize("piece", NOTHING, ids=repr)
def test_a_megabyte_of_one_piece_holds_nothing(piece: str) -> None:
    assert spans_of([piece * (SIZE // len(piece.encode()))]) == [[]]


@pytest.mark.parametrize("piece", FOUND, ids=FOUND.get)
def test_every_finding_of_a_long_text_is_found(piece: str) -> None:
    count, size = SIZE // 10 // len(piece), len(piece)
    first = 2 + piece.find("'") + 1
    (found,) = spans_of(["x " + piece * count], (FOUND[piece],))
    assert [start for _, start, _ in found] == [first + i * size for i in range(count)]


def test_a_million_short_lines_hold_nothing() -> None:
    assert spans_of(["a1\n" * 1_000_000]) == [[]]
