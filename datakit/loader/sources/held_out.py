"""Chooses documents to hold out for validation, or to keep for simulated epochs, independently of seed and mixture.

If a single document near the end of the source has about the wanted size, it is chosen. Otherwise, the source's tokens
are divided into up to 64 strata of equal length, and each stratum contributes at most one range of consecutive
documents, at a pseudorandom position that is the same in every run. Only whole documents are held out, so no document
is in both training and validation. The documents of a range are consecutive, so a block of the remaining tokens still
needs only one or two reads. The ranges are spread over the source, so the choice is representative even if the source
is not in random order.

For simulated epochs, the strata are the same, but they are tried before the single document. A run of R tokens that
simulates a run of T tokens keeps the share R / T of each component, and therefore repeats its data as often as the
longer run would. Each range makes up for the surplus or shortfall of tokens in the ranges before it, so the total
number of tokens kept is right to within about half a document.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from datakit.errors import LoaderError
from datakit.loader.permutation import derive_key
from datakit.loader.sources.token_source import RangeSource, TokenSource

MAX_STRATA = 64
TOLERANCE = 0.1  # acceptable error, as a share of the wanted tokens, because whole documents rarely fit exactly
KEPT_TOLERANCE = 0.01  # the same for simulated epochs
STRATA = tuple(MAX_STRATA >> halvings for halvings in range(MAX_STRATA.bit_length()))
Ranges = list[tuple[int, int]]


def held_out(source: TokenSource, tokens: int, purpose: str, name: str) -> Ranges:
    """Choose ranges of whole documents with about `tokens` tokens in total. The ranges' positions depend on `purpose`.
    Raises a LoaderError that mentions component `name` if no choice leaves tokens both inside and outside the ranges.
    """
    _check_amount(source, tokens, purpose, name)
    spread = (_one_per_stratum(source, tokens, strata, purpose) for strata in STRATA)
    return _closest(source, tokens, purpose, name, TOLERANCE, [[_one_document(source, tokens)]], spread)


def kept(source: TokenSource, tokens: int, purpose: str, name: str) -> Ranges:
    """Choose ranges as `held_out` does, but with a total that differs from `tokens` by only about half a document."""
    _check_amount(source, tokens, purpose, name)
    spread = (_evened_out(source, tokens, strata, purpose) for strata in STRATA)
    return _closest(source, tokens, purpose, name, KEPT_TOLERANCE, spread, [[_one_document(source, tokens)]])


def _check_amount(source: TokenSource, tokens: int, purpose: str, name: str) -> None:
    if not 0 < tokens < source.tokens:
        raise LoaderError(
            f"component {name!r}: {purpose} would take {tokens:,} of its {source.tokens:,} tokens; some must remain"
        )


def _closest(
    source: TokenSource, tokens: int, purpose: str, name: str, tolerance: float, *choices: Iterable[Ranges]
) -> Ranges:
    """Return the first choice whose number of tokens differs from `tokens` by at most the tolerance or, if there is
    none, the closest choice.
    """

    def error(found: Ranges) -> float:
        return abs(total(found) - tokens) if 0 < total(found) < source.tokens else float("inf")

    best: Ranges = []
    for found in chain(*choices):
        best = min(best, found, key=error)
        if error(best) <= tolerance * tokens:
            break
    if error(best) == float("inf"):
        raise LoaderError(f"component {name!r}: {purpose} would take all of its tokens; they are in a single document")
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


def _evened_out(source: TokenSource, tokens: int, strata: int, purpose: str) -> Ranges:
    """Choose at most one range per stratum. Each range ends at the document boundary where the running total is closest
    to the number of tokens wanted from its stratum and all earlier ones.
    """
    found: Ranges = []
    chosen = 0
    for stratum in range(strata):
        begin, end = (source.tokens * i // strata for i in (stratum, stratum + 1))
        wanted = tokens * (stratum + 1) // strata - chosen
        start = begin + derive_key(purpose, strata, stratum) % (max(0, end - begin - max(0, wanted)) + 1)
        first = max(found[-1][1] if found else 0, _nearest_border(source, start))
        last = _nearest_border(source, min(source.tokens, first + wanted))
        if first < last:
            found.append((first, last))
            chosen += last - first
    return found


def _one_document(source: TokenSource, tokens: int) -> tuple[int, int]:
    """Return the range of the first document that starts in the last `tokens` tokens; if none does, the range of
    the last document.
    """
    start = _next_border(source, source.tokens - tokens)
    if start == source.tokens:
        start = int(source.document_borders(source.tokens - 1, source.tokens)[0])
    return start, int(source.document_borders(start, start + 1)[-1])


def _next_border(source: TokenSource, position: int) -> int:
    """Return the first document boundary at or after `position`."""
    if position >= source.tokens:
        return source.tokens
    borders = source.document_borders(position, position + 1)
    return position if borders[0] == position else int(borders[-1])


def _nearest_border(source: TokenSource, position: int) -> int:
    """Return the document boundary that is closest to `position`."""
    if position >= source.tokens:
        return source.tokens
    first, last = source.document_borders(position, position + 1)[[0, -1]].tolist()
    return first if position - first <= last - position else last
