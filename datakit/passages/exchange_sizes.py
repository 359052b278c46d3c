"""Estimates how many bytes the searches of the stage write to the exchange per byte of text: for the number of buckets,
and for the disk space that a run needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from datakit.passages.config import DOCUMENT, SUBSTRING, SearchConfig
from datakit.passages.phase_data import ROW_BYTES, Search
from datakit.passages.substrings.rows import STRETCH_BYTES

LEAST_BYTES = 40  # for the number of buckets, passages are assumed to have at least so many bytes
STRETCHES_EACH = 4  # a text has about this many stretches per `min_bytes` bytes
PASSAGE_SHARE = 0.4  # temporary bytes of a search for lines, per byte of text (docs/measurements.md)
SUBSTRING_SHARE = 250  # likewise, of a search for substrings, times `min_bytes`
INSIDE_SHARE = 0.1  # likewise, of a search within documents, which writes spans only


def passage_share(searches: Iterable[Search]) -> float:
    """Return about how many bytes of lines and paragraphs the searches write per byte of text."""
    lengths = [one.config.least for one in searches if one.config.within != DOCUMENT and one.config.unit != SUBSTRING]
    return sum(ROW_BYTES / max(LEAST_BYTES, length) for length in lengths)


def stretch_share(searches: Iterable[Search]) -> float:
    """Return about how many bytes of stretches the searches for substrings write per byte of text."""
    lengths = [one.config.least for one in searches if one.config.within != DOCUMENT and one.config.unit == SUBSTRING]
    return sum(STRETCHES_EACH * STRETCH_BYTES / length for length in lengths)


def exchange_share(searches: Iterable[SearchConfig]) -> float:
    """Return about how many temporary bytes all phases together write per byte of text."""
    return sum(map(_temporary_share, searches))


def _temporary_share(search: SearchConfig) -> float:
    if search.within == DOCUMENT:
        return INSIDE_SHARE
    return SUBSTRING_SHARE / search.least if search.unit == SUBSTRING else PASSAGE_SHARE
