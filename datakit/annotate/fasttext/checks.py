"""Checks the settings that all annotators with a fastText model share. This module imports no kernels, so that a driver
can check settings quickly.
"""

from __future__ import annotations

import re

PIECES = 8  # of a document that is longer than `max_bytes` (`pieces.py`)
LEAST_BYTES = 1024  # smallest permitted `max_bytes`; pieces then have 128 bytes
MOST_BYTES = 1 << 40  # in effect, every document is read whole
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def check_max_bytes(max_bytes: int) -> None:
    """Raise ValueError unless `max_bytes` is in the permitted range."""
    if not LEAST_BYTES <= max_bytes <= MOST_BYTES:
        raise ValueError(f"max_bytes is {max_bytes}; it must be from {LEAST_BYTES} to {MOST_BYTES}")


def check_sha256(sha256: str) -> None:
    """Raise ValueError unless `sha256` consists of 64 hex digits."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"sha256 is {sha256!r}; it must be the 64 hex digits that `sha256sum` prints for the model")
