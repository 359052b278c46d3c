"""Decides which component each slot of the run goes to, and which of that component's sequences is served there.

A slot is a row's index, counted over all batches. The slots of each stage are divided into mixture blocks (of 2,048
slots by default). apportion.py decides how many sequences of each component a block holds, and a keyed permutation
decides their order. A component's sequences are numbered in slot order. If a new stage cuts a mixture block short, the
numbering continues after the last sequence served. Computing 2,048 slots takes 0.3 ms; 64 blocks are cached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.mixture.apportion import SCALE, BlockCounts
from datakit.loader.permutation import Permutation, derive_key

CACHED_BLOCKS = 64  # 2 MB at 2,048 slots
# Maximum number of mixture blocks to search for the end of a component's epochs. By default, they have 8 billion slots,
# and the search takes about a minute.
MAX_BLOCKS = 4_000_000


@dataclass(frozen=True)
class StageSlots:
    """A stage that starts at slot `first`. members: the numbers of its components, ascending. counts: the number of
    sequences of each component in each block.
    """

    first: int
    members: np.ndarray
    counts: BlockCounts


class SlotOrder:
    """The assignment of a run's slots to components. A component's number is its index in `names`. `stages` contains
    pairs (first slot, weights), with slots ascending from 0.
    """

    def __init__(
        self, names: Sequence[str], stages: Sequence[tuple[int, Mapping[str, float]]], block: int, seed: int
    ) -> None:
        self.block = block
        self._seed = seed
        self._names = list(names)
        self._stages = [self._stage(first, weights) for first, weights in stages]
        self._firsts = [stage.first for stage in self._stages]
        self._cached = lru_cache(CACHED_BLOCKS)(self._make_block)
        self._served = [np.zeros(len(names), np.int64)]  # number of sequences of each component before each stage
        for number, stage in enumerate(self._stages[1:]):
            self._served.append(self._served[number] + self._in_stage(number, stage.first - self._stages[number].first))

    def rows(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (component numbers, sequence numbers) for slots first..last-1: two int64 arrays [last - first]."""
        components, sequences = [], []
        while first < last:
            number = self._stage_of(first)
            number_of_block, place = divmod(first - self._firsts[number], self.block)
            end = min(last, first - place + self.block)
            if number + 1 < len(self._firsts):
                end = min(end, self._firsts[number + 1])
            ids, ordinals = self._cached(number, number_of_block)
            components.append(ids[place : place + end - first])
            sequences.append(ordinals[place : place + end - first])
            first = end
        if len(components) == 1:
            return components[0], sequences[0]
        nothing = np.zeros(0, np.int64)
        return np.concatenate([nothing, *components]), np.concatenate([nothing, *sequences])

    def served(self, slot: int) -> np.ndarray:
        """Return the number of sequences of each component in the slots before `slot`: int64 [components]."""
        number = self._stage_of(slot)
        return self._served[number] + self._in_stage(number, slot - self._firsts[number])

    def shares(self, first: int, last: int) -> list[float]:
        """Return each component's largest share in the stages that overlap slots first..last (inclusive)."""
        shares = np.zeros(len(self._names))
        for stage in self._stages[self._stage_of(first) : self._stage_of(last) + 1]:
            shares[stage.members] = np.maximum(shares[stage.members], stage.counts.parts / SCALE)
        return shares.tolist()

    def slot_of(self, component: int, sequence: int) -> int | None:
        """Return the slot at which sequence `sequence` of a component is served, or None if it is never served. Raises
        LoaderError if the slot is too far ahead to be computed.
        """
        number, inside = self._stage_serving(component, sequence)
        stage = self._stages[number]
        member = np.flatnonzero(stage.members == component)
        return stage.first + self._place(number, int(member[0]), inside) if member.size else None

    def earliest(self, component: int, sequence: int) -> float:
        """Return a lower bound for the result of `slot_of` without computing blocks; infinity if the result is None."""
        number, inside = self._stage_serving(component, sequence)
        stage = self._stages[number]
        member = np.flatnonzero(stage.members == component)
        low = self._blocks_around(number, int(member[0]), inside)[0] if member.size else float("inf")
        return stage.first + low * self.block

    def _stage_serving(self, component: int, sequence: int) -> tuple[int, int]:
        """Return the index of the stage that serves a component's sequence, and the number of earlier sequences of this
        component in that stage. If no earlier stage serves the sequence, the last stage is returned.
        """
        served = [int(totals[component]) for totals in self._served]
        number = bisect_right(served, sequence, 1) - 1
        return number, sequence - served[number]

    def _stage(self, first: int, weights: Mapping[str, float]) -> StageSlots:
        members = [i for i, name in enumerate(self._names) if weights.get(name, 0) > 0]
        counts = BlockCounts([weights[self._names[i]] for i in members], self.block)
        return StageSlots(first, np.array(members, np.int64), counts)

    def _stage_of(self, slot: int) -> int:
        return bisect_right(self._firsts, slot) - 1

    def _in_stage(self, number: int, slots: int) -> np.ndarray:
        """Return the number of sequences of each component in the first `slots` slots of a stage."""
        stage = self._stages[number]
        number_of_block, place = divmod(slots, self.block)
        served = np.zeros(len(self._names), np.int64)
        served[stage.members] = stage.counts.before(number_of_block)
        if place:
            served += np.bincount(self._order_of(number, number_of_block)[:place], minlength=len(self._names))
        return served

    def _order_of(self, number: int, number_of_block: int) -> np.ndarray:
        stage = self._stages[number]
        planned = np.repeat(stage.members, stage.counts.of(number_of_block))
        key = derive_key(self._seed, "mixture", stage.first, number_of_block)
        return planned[Permutation(self.block, key)(np.arange(self.block))]

    def _make_block(self, number: int, number_of_block: int) -> tuple[np.ndarray, np.ndarray]:
        stage = self._stages[number]
        components = self._order_of(number, number_of_block)
        counts = stage.counts.of(number_of_block)
        base = self._served[number][stage.members] + stage.counts.before(number_of_block)
        sequences = np.empty(self.block, np.int64)
        shift = np.repeat(base - (np.cumsum(counts) - counts), counts)
        sequences[np.argsort(components, kind="stable")] = np.arange(self.block) + shift
        return components, sequences

    def _blocks_around(self, number: int, member: int, sequence: int) -> tuple[int, int]:
        """Return (low, high) such that the sequence is in one of the blocks low..high-1. The bounds hold because a
        running total differs from the exact share by less than one sequence.
        """
        owed = int(self._stages[number].counts.parts[member]) * self.block
        return sequence * SCALE // owed, -(-(sequence + 1) * SCALE // owed)

    def _place(self, number: int, member: int, sequence: int) -> int:
        """Return the slot of a sequence of `members[member]`; slots and sequences are numbered within the stage."""
        counts, component = self._stages[number].counts, int(self._stages[number].members[member])
        low, high = self._blocks_around(number, member, sequence)
        if high > MAX_BLOCKS:
            raise LoaderError(
                f"component {self._names[component]!r}: at its weight, sequence {sequence:,} comes after slot "
                f"{low * self.block:,}, so the end of the run is too far ahead to be computed; raise the weight, or "
                "change `stop` or `max_epochs`"
            )
        counts.announce(high, f"component {self._names[component]!r} has a tiny weight: finding the end of the run")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if counts.before(middle)[member] <= sequence else (low, middle)
        found = np.flatnonzero(self._order_of(number, low) == component)
        return low * self.block + int(found[sequence - int(counts.before(low)[member])])
