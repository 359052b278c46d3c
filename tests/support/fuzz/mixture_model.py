"""Models a mixture as docs/loader.md describes it: the axis of a component, its blocks, and the rows of a block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from datakit.loader import (
    ArraySource,
    Component,
    Mixture,
    Packing,
    Schedule,
    Shuffle,
    SimulatedEpochs,
    Stage,
    training_source,
)

Piece = tuple[int, int]  # (start, stop) on the axis of the component's training tokens
Row = tuple[Piece, ...]


@dataclass(frozen=True)
class Part:
    """A component: the lengths of its documents and its settings."""

    lengths: tuple[int, ...]
    masked: bool = False
    packing: Packing | None = None
    shuffle: Shuffle = Shuffle()  # noqa: RUF009 - frozen
    validation: int = 0
    max_epochs: int | None = None

    def component(self) -> Component:
        tokens = np.arange(sum(self.lengths), dtype=np.uint32)
        source = ArraySource(tokens, self.lengths, tokens % 3 != 0 if self.masked else None)
        return Component(source, self.packing, self.shuffle, self.validation, self.max_epochs)


@dataclass(frozen=True)
class Case:
    """A mixture as plain data. stages: (first slot, weights by component)."""

    parts: tuple[Part, ...]
    stages: tuple[tuple[int, tuple[float, ...]], ...]
    sizes: tuple[tuple[int, int], ...]
    batches: tuple[tuple[int, int], ...]
    block: int
    stop: str = "restart"
    final: str = "drop"
    pad: int = 0
    seed: int = 0
    hosts: int = 1
    simulate: SimulatedEpochs | None = None

    def mixture(self) -> Mixture:
        names = [f"c{i}" for i in range(len(self.parts))]
        stages = [Stage(dict(zip(names, weights, strict=True)), start_slot=slot) for slot, weights in self.stages]
        components = {name: part.component() for name, part in zip(names, self.parts, strict=True)}
        return Mixture(
            components, stages, self.seed, Schedule(self.sizes), Schedule(self.batches), self.block, self.stop,
            simulate=self.simulate, final_batch=self.final, pad_id=self.pad,
        )  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """The training tokens of component `number`: each token's value, the starts of documents, and the blocks."""

    number: int
    part: Part
    values: np.ndarray
    starts: frozenset[int]
    borders: tuple[int, ...]

    @classmethod
    def of(cls, part: Part, name: str, simulate: SimulatedEpochs | None) -> Axis:
        source = training_source(part.component(), name, simulate)
        borders = source.document_borders(0, source.tokens).tolist()
        return cls(int(name[1:]), part, source.read(0, source.tokens), frozenset(borders[:-1]), tuple(borders))

    @cached_property
    def blocks(self) -> list[Piece]:
        """The last block is up to half a block shorter or longer than the others."""
        size, total = self.part.shuffle.block_tokens, len(self.values)
        count = max(1, (total + size // 2) // size)
        return [(i * size, total if i == count - 1 else (i + 1) * size) for i in range(count)]

    def block_of(self, position: int) -> int:
        return min(position // self.part.shuffle.block_tokens, len(self.blocks) - 1)

    @cached_property
    def part_starts(self) -> set[int]:
        """Places at which packing cuts documents that are longer than a block."""
        if self.part.packing is None:
            return set()
        size = self.part.shuffle.block_tokens
        return {at for begin, end in pairwise(self.borders) for at in range(begin, end, size)}


def block_rows(axis: Axis, block: int, length: int) -> list[Row]:
    """The sequences of a block."""
    first, stop = axis.blocks[block]
    if axis.part.packing is None:
        cuts = range(first, stop, length)
        return [_split_at(axis, start, min(stop, start + length)) for start in cuts]
    pieces = [piece for piece in _pieces(axis, axis.part.packing, length) if axis.block_of(piece[2]) == block]
    rows: list[list[Piece]] = []
    most = axis.part.packing.max_documents
    for start, end, _ in sorted(pieces, key=lambda piece: piece[0] - piece[1]):  # the longest first
        rooms = [length - sum(b - a for a, b in row) for row in rows]
        fit = [i for i, room in enumerate(rooms) if room >= end - start and not (most and len(rows[i]) >= most)]
        if fit:
            rows[min(fit, key=lambda i: (rooms[i], i))].append((start, end))
        else:
            rows.append([(start, end)])
    return [tuple(row) for row in rows]


def _split_at(axis: Axis, start: int, stop: int) -> Row:
    cuts = [start, *(border for border in axis.borders if start < border < stop), stop]
    return tuple(pairwise(cuts))


def _pieces(axis: Axis, packing: Packing, length: int) -> list[tuple[int, int, int]]:
    """(start, stop, start of its part) of what is packed. A part is a document, or a block's size of a longer one."""
    size, found = axis.part.shuffle.block_tokens, []
    for begin, end in pairwise(axis.borders):
        for start in range(begin, end, size):
            stop = min(end, start + size)
            if end - begin <= length:
                found.append((start, stop, start))
            elif packing.too_long == "split":
                found += [(at, min(stop, at + length), start) for at in range(start, stop, length)]
            elif packing.too_long == "truncate" and start == begin:
                found.append((start, min(stop, start + length), start))
    return found
