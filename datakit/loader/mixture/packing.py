"""Whole documents into sequences: best fit inside one block of tokens, from the documents' lengths alone.

Document order inside a block is left, document content never is: a document that fits in a sequence lies in one, whole.
Each block is packed by itself, so a sequence can be found without packing anything before it; all that must be known
of the other blocks is how many sequences each gives (`count_blocks`; stored, it is named
`packing-<length>-<policy>`).

Which document belongs to which block does not depend on the sequence length: a document belongs to the block in which
it begins (one longer than a block is first cut into parts of a block's size, each a document of its own here). So when
the length grows, blocks that were read stay read, and nothing is lost or read twice.

Longest first, each into the fullest sequence that still has room (best fit decreasing): about 0.7 us a document, 1-2 %
padding on real texts where the block holds some dozens of sequences. A document that is longer than a sequence is
too long: `split` cuts it into full sequences and one rest, `truncate` keeps its beginning, `drop` leaves it out; each
is counted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.sources.block_axis import BlockAxis
from datakit.loader.sources.ranges import Pieces, cut
from datakit.loader.sources.token_source import TokenSource

POLICIES = ("split", "truncate", "drop")


@dataclass(frozen=True)
class Packing:
    """How a component's documents are packed. `max_documents` bounds the documents of one sequence; 0 does not."""

    too_long: str = "split"
    max_documents: int = 0

    def check(self, name: str) -> None:
        """Raises LoaderError for values that cannot be."""
        if self.too_long not in POLICIES:
            raise LoaderError(f"component {name!r}: too_long is {self.too_long!r}; it is one of {', '.join(POLICIES)}")
        if self.max_documents < 0:
            raise LoaderError(f"component {name!r}: max_documents is {self.max_documents}; 0 means no bound")

    def counts_name(self, length: int) -> str:
        """The name of the counts that belong to this packing: `packing-4096-split`."""
        bound = f"-{self.max_documents}" if self.max_documents else ""
        return f"packing-{length}-{self.too_long}{bound}"


@dataclass(frozen=True)
class Counters:
    """What packing did to documents and tokens; sums over blocks are sums over fields."""

    documents: int = 0  # parts of documents that the blocks own
    tokens: int = 0
    kept: int = 0  # tokens that are in a sequence
    split: int = 0  # documents that were cut, each policy's own
    truncated: int = 0
    dropped: int = 0
    padding: int = 0  # slots without a token

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Documents:
    """The documents (or parts of very long ones) that a block owns: start, length, and the whole document's length."""

    starts: np.ndarray
    lengths: np.ndarray
    whole: np.ndarray
    heads: np.ndarray  # bool: a document begins here, not a later part of one

    @property
    def extent(self) -> tuple[int, int]:
        """The range of tokens that they cover; it is contiguous."""
        if not len(self.starts):
            return 0, 0
        return int(self.starts[0]), int(self.starts[-1] + self.lengths[-1])


@dataclass(frozen=True)
class Packed:
    """The sequences of a block, and what became of its documents."""

    pieces: Pieces
    counters: Counters


def owned_documents(source: TokenSource, axis: BlockAxis, block: int) -> Documents:
    """The documents of one block of the source: from their borders alone, no token is read."""
    first, end = axis.range(block)
    borders = source.document_borders(first, end)
    sizes = np.full(len(borders) - 1, axis.block_tokens)
    starts, lengths, document = cut(borders[:-1], np.diff(borders), sizes)
    inside = (starts >= first) & (starts < end)
    starts, lengths, document = starts[inside], lengths[inside], document[inside]
    return Documents(starts, lengths, np.diff(borders)[document], starts == borders[document])


def pieces_of(documents: Documents, length: int, too_long: str) -> tuple[np.ndarray, np.ndarray, Counters]:
    """(starts, lengths, counters): what goes into sequences of `length`, none longer than that, in token order."""
    over = documents.whole > length
    heads = int(np.count_nonzero(over & documents.heads))
    seen = Counters(documents=len(over), tokens=int(documents.lengths.sum()))
    if too_long == "split":
        starts, lengths, _ = cut(documents.starts, documents.lengths, np.where(over, length, documents.lengths))
        return starts, lengths, replace(seen, split=heads)
    if too_long == "truncate":
        kept = ~over | documents.heads
        return documents.starts[kept], np.minimum(documents.lengths[kept], length), replace(seen, truncated=heads)
    return documents.starts[~over], documents.lengths[~over], replace(seen, dropped=heads)


def best_fit(lengths: np.ndarray, capacity: int, max_items: int = 0) -> np.ndarray:
    """The sequence of each item: longest first, each into the fullest that has room; ties go to the earlier one.

    >>> best_fit(np.array([10, 15, 4, 10]), 20).tolist()
    [1, 0, 0, 1]
    """
    order = np.argsort(-lengths, kind="stable")
    full = int(np.searchsorted(-lengths[order], -capacity, side="right"))
    chosen = np.empty(len(lengths), np.int64)
    chosen[order[:full]] = np.arange(full)
    chosen[order[full:]] = _place(lengths[order[full:]].tolist(), capacity, full, max_items)
    return chosen


def pack(
    starts: np.ndarray, lengths: np.ndarray, capacity: int, max_items: int = 0, seen: Counters | None = None
) -> Packed:
    """Pieces into sequences of `capacity` tokens; inside a sequence they stand in the order in which they came in."""
    chosen = best_fit(lengths, capacity, max_items)
    sequences = int(chosen.max()) + 1 if len(chosen) else 0
    order = np.lexsort((np.arange(len(lengths)), -lengths, chosen))
    pointer = np.concatenate([[0], np.cumsum(np.bincount(chosen, minlength=sequences))]).astype(np.int64)
    kept = int(lengths.sum())
    counters = replace(seen or Counters(), kept=kept, padding=sequences * capacity - kept)
    return Packed(Pieces(pointer, starts[order], lengths[order]), counters)


def pack_block(source: TokenSource, axis: BlockAxis, block: int, length: int, packing: Packing) -> Packed:
    """One block's sequences: a pure function of the documents' lengths."""
    starts, lengths, seen = pieces_of(owned_documents(source, axis, block), length, packing.too_long)
    return pack(starts, lengths, length, packing.max_documents, seen)


@dataclass(frozen=True)
class PackingCounts:
    """How many sequences each of some consecutive blocks gives, and what packing them did: the derived artefact."""

    sequences: np.ndarray  # int32, one a block
    counters: Counters


def count_blocks(source: TokenSource, axis: BlockAxis, blocks: range, length: int, packing: Packing) -> PackingCounts:
    """The counts of some consecutive blocks. Tables of neighbouring ranges concatenate; their counters add."""
    counts, counters = np.zeros(len(blocks), np.int32), Counters()
    for i, block in enumerate(blocks):
        packed = pack_block(source, axis, block, length, packing)
        counts[i] = packed.pieces.sequences
        counters += packed.counters
    return PackingCounts(counts, counters)


def _place(lengths: list[int], capacity: int, opened: int, max_items: int) -> list[int]:
    """Best fit of descending lengths below the capacity. `rooms` holds (room << 32 | sequence), ascending."""
    rooms: list[int] = []
    items: dict[int, int] = {}
    chosen = []
    for length in lengths:
        at = bisect_left(rooms, length << 32)
        if at < len(rooms):
            room = rooms.pop(at)
            sequence, left = room & 0xFFFFFFFF, (room >> 32) - length
        else:
            sequence, left = opened, capacity - length
            opened += 1
        chosen.append(sequence)
        if max_items:
            items[sequence] = items.get(sequence, 0) + 1
            left = 0 if items[sequence] == max_items else left
        if left:
            insort(rooms, left << 32 | sequence)
    return chosen
