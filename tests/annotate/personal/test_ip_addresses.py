"""IP addresses are those that the standard library can parse, between characters that cannot belong to them."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.annotate.planting import found_in

FOUR = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d|-[A-Za-z_])", re.ASCII)


def parsed(text: str) -> str:
    """Return the text of an IPv4 address; "" if it is none."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        return ""


@given(st.lists(st.sampled_from(["1", "0", "25", "255", "256", ".", ".", ".", " ", "a", "-", "漢"]), max_size=16))
@settings(max_examples=500)
def test_ipv4_addresses_match_the_standard_library(pieces: list[str]) -> None:
    text = "x " + "".join(pieces)  # not at the beginning of a line, where section numbers are
    found = [address for _, address in found_in(text, "ipv4", "ipv4_reserved")]
    assert found == [match[0] for match in FOUR.finditer(text) if parsed(match[0])]


@given(st.integers(0, 2**32 - 1).map(lambda value: str(ipaddress.IPv4Address(value))))
@settings(max_examples=300)
def test_every_ipv4_address_has_one_kind(address: str) -> None:
    ((kind, found),) = found_in(f"x {address}", "ipv4", "ipv4_reserved")
    value = ipaddress.IPv4Address(address)
    anycast = value in ipaddress.IPv4Network("192.88.99.0/24") or value in ipaddress.IPv4Network("192.0.0.0/24")
    assert found == address
    assert (kind == "ipv4") == (value.is_global and not value.is_multicast and not anycast)


@given(st.integers(0, 2**125 - 1), st.sampled_from(["compressed", "exploded"]))
@settings(max_examples=300)
def test_public_ipv6_addresses_are_found(value: int, form: str) -> None:
    address = getattr(ipaddress.IPv6Address((1 << 125) | value), form)
    expected = [address] if len(address.replace("::", ":").strip(":").split(":")) >= 3 else []
    assert [found for _, found in found_in(f"[{address}]:80", "ipv6", "ipv6_reserved")] == expected


@pytest.mark.parametrize("address", ["fe80::1", "fd00::a:1", "2001:db8::1", "::ffff:10.1.2.3", "FE80::a1"])
def test_ipv6_addresses_that_nobody_owns_are_a_kind_of_their_own(address: str) -> None:
    assert found_in(f"({address})", "ipv6", "ipv6_reserved") == [("ipv6_reserved", address)]


@pytest.mark.parametrize(
    "text",
    [
        "v1.2.3.4",
        "version 1.2.3.4",
        "zlib >= 1.2.0.4",
        "\n1.2.3.4 Heading",
        "*   22.1.3.1\n",
        "1.2.3.4.5",
        "01.2.3.4",
        "256.1.1.1",
        "1.2.3.4-rc1",
    ],
)
def test_versions_and_sections_are_not_ipv4_addresses(text: str) -> None:
    assert found_in(text) == []


@pytest.mark.parametrize("text", ["host == '8.8.4.4'", "host != 8.8.4.4", "to 8.8.8.8 and 8.8.4.4", "see\n8.0.4.4\n"])
def test_addresses_in_code_and_lists_are_found(text: str) -> None:
    assert [kind for kind, _ in found_in(text)] == ["ipv4"] * text.count(".4.4") + ["ipv4"] * text.count("8.8.8.8")


@pytest.mark.parametrize("text", ["12:30:45", "x[1::2]", "x[2000::10]", "std::abs", "a::b", "::", "::1", ":::", "1:2"])
def test_times_slices_and_names_are_not_ipv6_addresses(text: str) -> None:
    assert found_in(text) == []
