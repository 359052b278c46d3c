"""Finds where the tokens of a batch come from: for each part of a document in each row, its place in its component's
source.

A part is the stretch of one document in one row, which is one segment of the row. The places are computed from the
order of the sequences alone. Document boundaries are read, but no tokens. Cost: about 1 ms per row, and the packing of
each block that a row of a packed component comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from datakit.loader.mixture.sequence_order import Pick, SequenceOrder
from datakit.loader.sources.token_source import RangeSource, TokenSource


@dataclass(frozen=True)
class DocumentPart:
    """The tokens of one document in one row: columns start..stop-1 of the row.

    position: where the part's first token is in the source of the component (before documents are held out).
    document: (start, stop) of the whole document in that source. excluded: True if the mixture excludes the document
    at this step.
    """

    row: int
    start: int
    stop: int
    component: str
    position: int
    document: tuple[int, int]
    excluded: bool = False


def document_parts(order: SequenceOrder, step: int, picks: Sequence[Pick]) -> list[DocumentPart]:
    """Return the parts of batch `step`, by row and from left to right. Rows count from the first row of the picks."""
    parts = [part for pick in picks for part in _of_pick(order, step, pick)]
    return sorted(parts, key=lambda part: (part.row, part.start))


def _of_pick(order: SequenceOrder, step: int, pick: Pick) -> Iterator[DocumentPart]:
    name, stream = order.names[pick.stream], order.streams[pick.stream]
    for unit, sequence, row in zip(
        pick.window.units.take(pick.units), pick.sequences.tolist(), pick.rows.tolist(), strict=True
    ):
        pieces, column = stream.reader.pieces_of(unit).take(np.array([sequence])), 0
        for start, length in zip(pieces.starts.tolist(), pieces.lengths.tolist(), strict=True):
            for first, stop, document in _documents(stream.source, start, start + length):
                left = column + first - start
                excluded = stream.reader.excluded_from(first) <= step
                position, shift = base_position(stream.source, first), first - document[0]
                whole = position - shift, position - shift + document[1] - document[0]
                yield DocumentPart(row, left, left + stop - first, name, position, whole, excluded)
            column += length


def _documents(source: TokenSource, start: int, stop: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield (start, stop, (start, stop) of the whole document) of each document's share of the tokens start..stop-1."""
    borders = source.document_borders(start, stop).tolist()
    for begin, end in pairwise(borders):
        if max(begin, start) < min(end, stop):
            yield max(begin, start), min(end, stop), (begin, end)


def base_position(source: TokenSource, position: int) -> int:
    """Return the position, in a component's source, of a token of its training source."""
    while isinstance(source, RangeSource):
        ((position, _, _),) = source.pieces(position, position + 1)
        source = source.base
    return position
