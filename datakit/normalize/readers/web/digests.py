"""Compares the digest of a record's block with the one that its header states (`WARC-Block-Digest`), in base 16 or 32.

Cost: SHA-1 takes 0.6 to 1 ms per MB.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from datakit.normalize.readers.web.errors import BrokenRecordError
from datakit.normalize.readers.web.pieces import View

DIGEST_SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}
DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
# the digits of base 32 in RFC 4648 -> those of Python's int, and all other bytes -> one that int refuses
BASE_32 = bytes(
    b"0123456789abcdefghijklmnopqrstuv"[at] if (at := DIGITS.find(bytes([byte]).upper())) >= 0 else ord("!")
    for byte in range(256)
)


def check_digest(stated: str | None, block: View) -> None:
    """Raise BrokenRecordError if the block has another digest than stated. A digest by an unknown algorithm, or in an
    unknown notation, is not compared.
    """
    algorithm, _, digits = (stated or "").strip().partition(":")
    name = algorithm.lower().replace("-", "")
    size = DIGEST_SIZES.get(name)
    expected = _decoded(digits.strip(), size) if size else None
    if expected is not None and hashlib.new(name, block, usedforsecurity=False).digest() != expected:
        raise BrokenRecordError("its block does not have the digest that its header states")


def _decoded(digits: str, size: int) -> bytes | None:
    """Return a digest given in base 16 or base 32, or None if it is in neither."""
    digits = digits.rstrip("=")
    if 5 * len(digits) == 8 * size and digits.isascii():  # SHA-1; base64.b32decode would take 6 µs
        return from_base_32(digits.encode("ascii"), size)
    try:
        if len(digits) == 2 * size:
            return bytes.fromhex(digits)
        found = base64.b32decode(digits.upper() + "=" * (-len(digits) % 8))
        return found if len(found) == size else None
    except (ValueError, binascii.Error):
        return None


def from_base_32(digits: bytes, size: int) -> bytes | None:
    """Return the number that is written in base 32, as `size` bytes; None if another digit occurs.

    >>> from_base_32(b"AAAAAAAB", 5), from_base_32(b"aaaaaaa7", 5), from_base_32(b"AAAA_AA1", 5)
    (b'\\x00\\x00\\x00\\x00\\x01', b'\\x00\\x00\\x00\\x00\\x1f', None)
    """
    try:
        return int(digits.translate(BASE_32), 32).to_bytes(size, "big")
    except ValueError:
        return None
