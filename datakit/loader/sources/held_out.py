"""Chooses the held-out documents: whole documents, spread over the source, the same for every seed and mixture.

The axis is divided into up to 64 equal strata; each contributes one run of consecutive documents at a keyed place.
Documents are held out whole, so none is on both sides. Those of a run are consecutive, so a block of the remaining axis
still takes one or two reads. The runs are spread out, so the choice is fair even if a source is not in id order. No
seed, mixture or sequence length can move a document from one side to the other.

Simulated epochs choose documents in the same way: a run of R tokens that simulates one of T tokens keeps the share
R / T of each component, and so repeats its data as often as the long run would.
"""

from __future__ import annotations

from datakit.errors import LoaderError
from datakit.loader.permutation import derive_key
from datakit.loader.sources.token_source import RangeSource, TokenSource

MAX_STRATA = 64
TOLERANCE = 0.1  # share of the wanted tokens; documents are whole, so the amount is rarely exact
Ranges = list[tuple[int, int]]


def held_out(source: TokenSource, tokens: int, purpose: str, name: str) -> Ranges:
    """Choose ranges of whole documents with about `tokens` tokens. Their places depend on `purpose`.

    Raises LoaderError, naming the component `name`, if no such choice leaves tokens on both sides.
    """
    if not 0 < tokens < source.tokens:
        raise LoaderError(
            f"component {name!r}: {purpose} would take {tokens:,} of its {source.tokens:,} tokens; some must remain"
        )

    def error(found: Ranges) -> float:
        return abs(total(found) - tokens) if 0 < total(found) < source.tokens else float("inf")

    strata, best = MAX_STRATA, [_one_document(source, tokens)]
    while strata >= 1 and error(best) > TOLERANCE * tokens:
        best = min(best, _one_per_stratum(source, tokens, strata, purpose), key=error)
        strata //= 2
    if error(best) == float("inf"):
        raise LoaderError(f"component {name!r}: {purpose} would take all of its tokens; it is a single document")
    return best


def total(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def remaining(source: TokenSource, ranges: Ranges) -> RangeSource:
    kept, at = [], 0
    for start, stop in [*ranges, (source.tokens, source.tokens)]:
        if at < start:
            kept.append((at, start))
        at = stop
    return RangeSource(source, kept)


def _one_per_stratum(source: TokenSource, tokens: int, strata: int, purpose: str) -> Ranges:
    found: Ranges = []
    for stratum in range(strata):
        begin, end = (source.tokens * i // strata for i in (stratum, stratum + 1))
        wanted = tokens * (stratum + 1) // strata - tokens * stratum // strata
        start = begin + derive_key(purpose, strata, stratum) % (max(0, end - begin - wanted) + 1)
        first, last = _next_border(source, start), _next_border(source, start + wanted)
        if first < last:
            found.append((first, last))
    return found


def _one_document(source: TokenSource, tokens: int) -> tuple[int, int]:
    """Return the first document that starts in the last `tokens` tokens, or else the last document."""
    start = _next_border(source, source.tokens - tokens)
    if start == source.tokens:
        start = int(source.document_borders(source.tokens - 1, source.tokens)[0])
    return start, int(source.document_borders(start, start + 1)[-1])


def _next_border(source: TokenSource, position: int) -> int:
    """Return the first document border at or after `position`."""
    if position >= source.tokens:
        return source.tokens
    borders = source.document_borders(position, position + 1)
    return position if borders[0] == position else int(borders[-1])
