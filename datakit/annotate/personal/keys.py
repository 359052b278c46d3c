"""Finds access keys and tokens by the prefixes that their issuers give them.

A compiled check of a prefix (`key_start`) comes first and is cheap; RE2 then decides, on at most LONGEST bytes from the
prefix on. The prefixes are those of the issuers; the lengths are the usual ones, which no issuer promises:

    aws_key       AKIA, ASIA, ABIA or ACCA and 16 of A-Z2-7; not the documentation's key, which ends in EXAMPLE
    github_token  ghp_, gho_, ghu_, ghs_ or ghr_ and 36 to 255 letters and digits; github_pat_ and 82 characters
    google_key    AIza and 35 characters
    jwt           three base64url parts; the first two decode to JSON objects, the first of which has "alg" (RFC 7519)
    private_key   a PEM block (RFC 7468) whose label ends in PRIVATE KEY, with at least 64 base64 characters inside
    slack_token   xoxa-, xoxb-, xoxe-, xoxo-, xoxp-, xoxr- or xoxs- and 10 to 250 characters, of which one is a digit
    stripe_key    sk_ or rk_, live_ or test_, and 10 to 99 letters and digits

No key may touch a character that could belong to it, so two searches never read the same bytes, except for private
keys, for each of which at most LONGEST bytes are searched for the end of the block.
"""

from __future__ import annotations

import base64
import binascii
import json

import numpy as np
import re2

from datakit.annotate.personal import byte_classes, kinds
from datakit.annotate.personal.byte_classes import WORD, at, before, has
from datakit.annotate.personal.kinds import (
    AWS_KEY,
    GITHUB_TOKEN,
    GOOGLE_KEY,
    JWT,
    PRIVATE_KEY,
    SLACK_TOKEN,
    STRIPE_KEY,
)
from datakit.text.numba_cache import cached_njit

LONGEST = 16384  # bytes of a private key or JWT, from its prefix on
LONGEST_SHORT = 272  # bytes of any other key
LEAST_PEM = 64  # base64 characters; the shortest keys (Ed25519, PKCS 8) have exactly 64
_END = r"(?:[^A-Za-z0-9_-]|\z)"
_PATTERNS = {
    AWS_KEY: r"((?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})(?:[^A-Za-z0-9_]|\z)",
    GITHUB_TOKEN: rf"(gh[pousr]_[A-Za-z0-9]{{36,255}}|github_pat_[A-Za-z0-9_]{{82}}){_END}",
    GOOGLE_KEY: rf"(AIza[A-Za-z0-9_-]{{35}}){_END}",
    JWT: rf"(eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{{10,}}){_END}",
    SLACK_TOKEN: rf"(xox[abeoprs]-[A-Za-z0-9-]{{10,250}}){_END}",
    STRIPE_KEY: rf"((?:sk|rk)_(?:live|test)_[A-Za-z0-9]{{10,99}}){_END}",
}
_COMPILED = {kind: re2.compile(pattern.encode()) for kind, pattern in _PATTERNS.items()}
_PEM = re2.compile(rb"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----")
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
_NOT_BASE64 = bytes(sorted(set(range(256)) - _BASE64))

kernel = cached_njit(byte_classes, kinds)


@kernel
def _reads(data: np.ndarray, position: int, stop: int, word: bytes) -> bool:
    """Return True if data[position:stop] begins with a word."""
    if position + len(word) > stop:
        return False
    for i in range(len(word)):  # noqa: SIM110 - numba compiles no generators
        if data[position + i] != word[i]:
            return False
    return True


@kernel
def key_start(data: np.ndarray, start: int, stop: int, position: int) -> tuple[int, int]:
    """Return where a key may begin whose prefix has its rarest byte at `position`, and the key's kind.

    If there is none, return (0, -1).
    """
    byte, first, kind = data[position], position, -1
    if byte == 65:  # A
        follow = at(data, position + 1, stop)
        same_tail = follow in (75, 83, 66) and _reads(data, position + 2, stop, b"IA")
        if same_tail or _reads(data, position, stop, b"ACCA"):
            kind = AWS_KEY
        elif _reads(data, position, stop, b"AIza"):
            kind = GOOGLE_KEY
    elif byte == 74 and position - 2 >= start and _reads(data, position - 2, stop, b"eyJ"):
        first, kind = position - 2, JWT
    elif byte == 120 and _reads(data, position, stop, b"xox") and at(data, position + 4, stop) == 45:
        kind = SLACK_TOKEN
    elif byte == 66 and position - 5 >= start and _reads(data, position - 5, stop, b"-----BEGIN "):
        return position - 5, PRIVATE_KEY
    elif byte == 95:
        if position - 3 >= start and _reads(data, position - 3, stop, b"gh"):
            first, kind = position - 3, GITHUB_TOKEN
        elif _reads(data, position, stop, b"_pat_") and position - 6 >= start:
            first, kind = position - 6, GITHUB_TOKEN
        elif position - 2 >= start and data[position - 1] == 107 and data[position - 2] in (114, 115):
            first, kind = position - 2, STRIPE_KEY
    lead = before(data, start, first)
    joined = lead == 45 and kind in (GOOGLE_KEY, JWT, SLACK_TOKEN)  # `-` belongs to these
    if kind < 0 or has(lead, WORD) or joined or (kind == JWT and lead == 46):
        return 0, -1
    return first, kind


def window_size(kind: int) -> int:
    """Return how many bytes, from the prefix on, decide whether there is a key of this kind."""
    return 1 + (LONGEST if kind in (JWT, PRIVATE_KEY) else LONGEST_SHORT)


def key_end(window: bytes, kind: int) -> int:
    """Return the size of the key at the beginning of `window`, the next `window_size` bytes of the text; 0 if there is
    none.
    """
    if kind == PRIVATE_KEY:
        return _pem_end(window)
    match = _COMPILED[kind].match(window)
    if match is None:
        return 0
    key = match[1] or b""  # the group takes part in every match
    if kind == JWT and not _is_jwt(key):
        return 0
    wrong = (
        len(key) > LONGEST
        or (kind == AWS_KEY and key.endswith(b"EXAMPLE"))
        or (kind == SLACK_TOKEN and not _has_digit(key))
    )
    return 0 if wrong else len(key)


def _has_digit(key: bytes) -> bool:
    return any(48 <= byte < 58 for byte in key)


def _pem_end(window: bytes) -> int:
    match = _PEM.match(window)
    if match is None:
        return 0
    header, label = match[0] or b"", match[1] or b""  # both take part in every match
    begin, footer = len(header), b"-----END " + label + b"-----"
    end = window.find(footer, begin)
    if end < 0 or window.find(b"-----BEGIN", begin, end) >= 0:
        return 0
    body = window[begin:end].translate(None, _NOT_BASE64)
    return end + len(footer) if len(body) >= LEAST_PEM else 0


def _is_jwt(key: bytes) -> bool:
    """Return True if the first two parts are JSON objects, the first of which has `alg` (RFC 7515, section 4.1.1)."""
    header, payload = (_json_object(part) for part in key.split(b".")[:2])
    return header is not None and payload is not None and "alg" in header


def _json_object(part: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
