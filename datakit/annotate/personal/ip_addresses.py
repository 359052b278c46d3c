"""Finds IP addresses and tells public ones from those that no person can own.

IPv4: four decimal numbers up to 255 without leading zeros. IPv6: the text forms of RFC 4291, section 2.2. Neither may
touch a letter, a digit or `_`. What is public follows IANA's registries of special-purpose addresses (RFC
6890). The tables are written down here, because those of Python's `ipaddress` change with its version.

Numbers that only look like IPv4 addresses are left out: after words such as `version` and signs such as `>=`, and
section numbers at the beginning of a line (all four from 1 to 63, followed by white space or a period). Of IPv6, only
2000::/3 with at least three groups and a few well-known ranges are reported, so slices such as `[1::2]` and times are
not addresses.
"""

from __future__ import annotations

import ipaddress

import numpy as np
import re2

from datakit.annotate.personal import byte_classes
from datakit.annotate.personal.byte_classes import DIGIT, HEX, WORD, at, before, has
from datakit.annotate.personal.kinds import IPV4, IPV4_RESERVED, IPV6, IPV6_RESERVED
from datakit.text.numba_cache import cached_njit

RESERVED_4 = tuple(
    (int(network.network_address) >> (32 - network.prefixlen), 32 - network.prefixlen)
    for network in map(
        ipaddress.IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
# inside 2000::/3: protocols, documentation (twice), 6to4; outside: IPv4-mapped, translation, private, link-local
SPECIAL_6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20", "2002::/16")))
RESERVED_6 = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96", "fc00::/7", "fe80::/10")))
LONGEST_6 = 45  # eight groups whose last two are written as IPv4
CONTEXT = 24  # bytes before an IPv4 address that may show that it is something else
# words and signs after which four numbers are a version, a revision or a section
_VERSION = re2.compile(
    r"(?i)(?:\b(?:version|ver|release|revision|rev|build|firmware|kernel|section|sec|chapter|clause|oid|nr|nummer"
    r"|ziffer|tz)|abschnitt|absatz|§)(?:s|n|en)?[^0-9A-Za-z]{0,4}\z|[<>=~]= {0,2}\z".encode()
)
_LINE_START = re2.compile(rb"(?:\A|\n)[ \t#>*-]*\z")
LARGEST_SECTION = 63

kernel = cached_njit(byte_classes)
_PERIOD, _COLON, _HYPHEN = ord("."), ord(":"), ord("-")


@kernel
def ipv4_end(data: np.ndarray, start: int, stop: int, first: int) -> int:
    """Return the end of the IPv4 address that begins at the digit `first` of data[start:stop]; 0 if there is none."""
    lead = before(data, start, first)
    if has(lead, WORD) or lead == _PERIOD:
        return 0
    position = first
    for octet in range(4):
        if octet:
            if at(data, position, stop) != _PERIOD:
                return 0
            position += 1
        value, begin = 0, position
        while has(at(data, position, stop), DIGIT) and position < begin + 3:
            value, position = 10 * value + data[position] - 48, position + 1
        if position == begin or value > 255 or (data[begin] == 48 and position > begin + 1):
            return 0
    follow, later = at(data, position, stop), at(data, position + 1, stop)
    if has(follow, WORD) or (follow == _PERIOD and has(later, DIGIT)):
        return 0
    return 0 if follow == _HYPHEN and has(later, WORD) and not has(later, DIGIT) else position


@kernel
def ipv6_window(data: np.ndarray, start: int, stop: int, colon: int) -> tuple[int, int, int]:
    """Return the start and the end of what may be an IPv6 address with its first colon at `colon`, (0, 0) if there is
    none, and the end of the run of colons, hexadecimal digits and periods, in which no other address can begin.
    """
    first, colons, double, periods = colon, 0, False, 0
    while first > start and has(data[first - 1], HEX) and first > colon - 5:
        first -= 1
    end = colon
    while end < stop and (has(data[end], HEX) or data[end] == _COLON or data[end] == _PERIOD):
        colons += data[end] == _COLON
        periods += data[end] == _PERIOD
        double = double or (data[end] == _COLON and at(data, end + 1, stop) == _COLON)
        end += 1
    close = end
    while close > first and data[close - 1] == _PERIOD:
        close -= 1
    if close - 1 > first and data[close - 1] == _COLON and data[close - 2] != _COLON:
        close -= 1
        colons -= 1
    whole = double or colons == 7 or (colons == 6 and periods >= 3)
    lead = before(data, start, first)
    if not whole or colons < 2 or colons > 8 or close - first > LONGEST_6:
        return 0, 0, end
    if has(lead, WORD) or lead == _PERIOD or has(at(data, end, stop), WORD):
        return 0, 0, end
    return first, close, end


def ipv4_kind(address: bytes, context: bytes, follow: bytes) -> int:
    """Return IPV4 or IPV4_RESERVED; -1 for a version or section number.

    context: up to CONTEXT bytes before the address. follow: the next byte, if there is one.
    """
    octets = [int(octet) for octet in address.split(b".")]
    if _VERSION.search(context):
        return -1
    section = min(octets) > 0 and max(octets) <= LARGEST_SECTION and follow in (b".", b" ", b"\n", b"\r", b"\t", b"")
    if section and _LINE_START.search(context):
        return -1
    value = int.from_bytes(octets, "big")
    return IPV4_RESERVED if any(value >> shift == prefix for prefix, shift in RESERVED_4) else IPV4


def ipv6_kind(address: bytes) -> int:
    """Return IPV6 or IPV6_RESERVED; -1 if this is not an address, or not one that is reported."""
    try:
        value = ipaddress.IPv6Address(address.decode("ascii"))
    except ValueError:
        return -1
    if any(value in network for network in RESERVED_6):
        return IPV6_RESERVED
    if value not in PUBLIC_6 or sum(map(bool, address.split(b":"))) < 3:
        return -1
    return IPV6_RESERVED if any(value in network for network in SPECIAL_6) else IPV6
