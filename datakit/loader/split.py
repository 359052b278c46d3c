"""Which documents are held out: a fixed, spread-out choice of whole documents, the same for every seed and mixture.

The axis is cut into up to 64 equal strata; from each comes one run of consecutive documents, at a keyed place. Whole
documents, so that none lies on both sides; consecutive ones, so that a block of the remaining axis is still one read,
or two; spread out, so that the choice is fair even where a source is not in id order. What is chosen depends on the
source alone: neither the seed nor the mixture nor the sequence length can move a document from one side to the other.

Simulated epochs use the same choice: a run of R tokens that stands for one of T keeps the share R / T of each
component, and so repeats its data as often as the long run would.
"""

from __future__ import annotations

from datakit.errors import LoaderError
from datakit.loader.permutation import derive_key
from datakit.loader.source import RangeSource, TokenSource

MOST_STRATA = 64
Ranges = list[tuple[int, int]]


def held_out(source: TokenSource, tokens: int, purpose: str, name: str) -> Ranges:
    """Ranges of whole documents with about `tokens` tokens. `purpose` keys the places, `name` is for errors."""
    if not 0 < tokens < source.tokens:
        raise LoaderError(f"component {name!r}: {purpose} wants {tokens:,} of its {source.tokens:,} tokens")
    strata, found = MOST_STRATA, []
    while strata >= 1:
        found = _one_per_stratum(source, tokens, strata, purpose)
        if tokens <= 2 * total(found) <= 3 * tokens:
            return found
        strata //= 2
    found = found or [_one_document(source, tokens)]
    if total(found) >= source.tokens:
        raise LoaderError(f"component {name!r}: {purpose} would take all of it; it is a single document")
    return found


def total(ranges: Ranges) -> int:
    """How many tokens the ranges hold."""
    return sum(stop - start for start, stop in ranges)


def remaining(source: TokenSource, ranges: Ranges) -> RangeSource:
    """The source without these ranges."""
    kept, at = [], 0
    for start, stop in [*ranges, (source.tokens, source.tokens)]:
        if at < start:
            kept.append((at, start))
        at = stop
    return RangeSource(source, kept)


def _one_per_stratum(source: TokenSource, tokens: int, strata: int, purpose: str) -> Ranges:
    width, wanted = source.tokens // strata, tokens // strata
    found: Ranges = []
    for stratum in range(strata if wanted else 0):
        start = stratum * width + derive_key(purpose, strata, stratum) % (width - wanted + 1)
        first, last = _next_border(source, start), _next_border(source, start + wanted)
        if first < last:
            found.append((first, last))
    return found


def _one_document(source: TokenSource, tokens: int) -> tuple[int, int]:
    """The first document that begins in the last part of the axis, or the last one: the least that can be taken."""
    start = _next_border(source, source.tokens - tokens)
    if start == source.tokens:
        start = int(source.document_borders(source.tokens - 1, source.tokens)[0])
    return start, int(source.document_borders(start, start + 1)[-1])


def _next_border(source: TokenSource, position: int) -> int:
    """The first document border at or after `position`."""
    if position >= source.tokens:
        return source.tokens
    borders = source.document_borders(position, position + 1)
    return position if borders[0] == position else int(borders[-1])
