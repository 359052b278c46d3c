"""E-mail addresses are found as a plain Python implementation finds them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.annotate.planting import found_in

LATIN = "".join(map(chr, range(0xC0, 0x250)))
LOCAL = re.compile(rf"[A-Za-z0-9._%+\-{LATIN}]")
DOMAIN = re.compile(
    rf"(?:[A-Za-z0-9{LATIN}][A-Za-z0-9{LATIN}-]*\.)+[A-Za-z0-9{LATIN}](?:[A-Za-z0-9{LATIN}-]*[A-Za-z0-9{LATIN}])?"
)


def addresses(text: str) -> list[str]:
    """Return the addresses in a short text that is made of PIECES."""
    found = []
    for sign in (match.start() for match in re.finditer("@", text)):
        first = sign
        while first and LOCAL.match(text[first - 1]):
            if text[first - 1] == "." and (first == sign or text[first] == "."):
                break
            first -= 1
        while first < sign and text[first] in ".%+-":
            first += 1
        domain = DOMAIN.match(text, sign + 1)
        if first == sign or not domain or (first and text[first - 1] == "@"):
            continue
        end = domain.end()
        last = domain[0].rpartition(".")[2].lower()
        if text[end : end + 1] in ("(", "@", "_") and end < len(text):
            continue
        user = re.search(r"//(?:[^\s/]*:)?$", text[:first])
        known = last == "de" or (re.fullmatch("[a-z]{3,24}", last) is not None)  # no other country can occur
        if known and not user and text[first:sign] != "git":
            found.append(text[first:end])
    return found


PIECES = ["a", "b1", ".", "..", "-", "_", "@", "@", "@x.de", ".de", ".com", " ", "/", "//", ":", "ü", "(", "漢", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=500)
def test_addresses_match_plain_python(text: str) -> None:
    assert [address for _, address in found_in(text, "email")] == addresses(text)


@pytest.mark.parametrize(
    "text",
    [
        "icon@2x.png",
        "pkg@1.2.3",
        "@user@social.example.de",
        "https://user:word@host.de/",
        "q = a@b.transpose(1)",
        "git@github.com:a/b",
        "x@y.c",
        "x@host",
        f"{'a' * 65}@x.de",
        f"a@{'b' * 64}.de",
        "a@" + "b" * 60 + (".c" + "d" * 58) * 4 + ".de",
    ],
)
def test_what_only_looks_like_an_address_is_not_found(text: str) -> None:
    assert found_in(text, "email", "email_reserved") == []


def test_the_longest_address_is_found() -> None:
    address = "a" * 64 + "@" + ("b" * 63 + ".") * 3 + "c" * 58 + ".de"
    assert found_in(f"<{address}>") == [("email", address)]


def test_domains_for_documentation_are_a_kind_of_their_own() -> None:
    text = "me@example.com you@a.EXAMPLE.org it@x.invalid me@notexample.com"
    kinds = [kind for kind, _ in found_in(text)]
    assert kinds == ["email_reserved"] * 3 + ["email"]
