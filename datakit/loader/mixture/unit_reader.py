"""Reads the sequences of a unit: a plain block, a packed block, or sequences joined at a change of length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from datakit.loader.mixture.packing import Packing, pack_block
from datakit.loader.mixture.window import Joined, Unit
from datakit.loader.sources.ranges import Pieces, plain
from datakit.loader.sources.rows import Rows, View, rows_of_pieces, rows_of_range
from datakit.loader.sources.token_source import BlockAxis, TokenSource

CACHED_PACKINGS = 64  # packed blocks, 16 bytes a document


class UnitReader:
    """Reads one component. `joined` has the joined sequences by stretch; its owner adds to it."""

    def __init__(
        self, source: TokenSource, axis: BlockAxis, packing: Packing | None, joined: Mapping[int, Joined]
    ) -> None:
        self._source, self._axis, self._packing, self._joined = source, axis, packing, joined
        self._packed = lru_cache(CACHED_PACKINGS)(self._pack)

    def load(self, unit: Unit, view: View) -> Rows:
        """Read all sequences of a unit."""
        if unit.joined < 0 and self._packing is None:
            start, stop = self._axis.range(unit.number)
            return rows_of_range(self._source, start, stop, unit.length, view)
        return self._load_pieces(self.pieces_of(unit), unit.length, view)

    def load_sequence(self, unit: Unit, sequence: int, view: View) -> Rows:
        """Read one sequence of a unit: for a full shuffle that does not fit in memory."""
        return self._load_pieces(self.pieces_of(unit).take(np.array([sequence])), unit.length, view)

    def pieces_of(self, unit: Unit) -> Pieces:
        """The sequences of a unit as ranges of the token axis."""
        if unit.joined >= 0:
            return self._joined[unit.joined].units[unit.number]
        if self._packing is None:
            return plain(*self._axis.range(unit.number), unit.length)
        return self._packed(unit.number, unit.length)

    def borders_near(self, pieces: Pieces) -> np.ndarray:
        """Document borders of all blocks in which the pieces start."""
        blocks = np.unique(np.minimum(pieces.starts // self._axis.block_tokens, self._axis.count - 1))
        return np.concatenate([self._source.document_borders(*self._axis.range(block)) for block in blocks.tolist()])

    def _load_pieces(self, pieces: Pieces, length: int, view: View) -> Rows:
        return rows_of_pieces(self._source, pieces, length, view, whole_documents=self._packing is not None)

    def _pack(self, block: int, length: int) -> Pieces:
        assert self._packing is not None
        return pack_block(self._source, self._axis, block, length, self._packing).pieces
