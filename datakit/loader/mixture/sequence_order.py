"""Computes which sequences of which components are in batch n, for any n, and determines when and why the run ends.

The constructor of SequenceOrder excludes held-out documents, assigns window sizes, and converts the starts of stages to
slots. For each change of the sequence length, it determines how much of each component has been served before the
change. Finally, it finds the end of the run, if there is one. It also looks up excluded documents. It reads no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.mixture.config import Component, Mixture
from datakit.loader.mixture.schedule import Schedule, SlotAxis
from datakit.loader.mixture.slots import SlotOrder
from datakit.loader.mixture.stream import Stream
from datakit.loader.mixture.validation_split import training_source
from datakit.loader.mixture.window import StreamSettings, Window
from datakit.loader.mixture.window_sizes import Claim, Grant, grant_windows
from datakit.loader.sources.exclusions import ExcludedTokens, excluded_tokens
from datakit.loader.sources.token_source import BlockAxis, TokenSource

JOIN_BYTES = 150  # bytes of memory per sequence joined at a change of length (130 were measured)
SMALL_JOIN = 64 << 20  # always permitted


@dataclass(frozen=True)
class Pick:
    """The rows of a batch that come from one window of a component. The arrays are int64 [rows]."""

    stream: int
    window: Window
    units: np.ndarray  # index of each row's unit in the window
    sequences: np.ndarray  # index of each row's sequence within its unit
    rows: np.ndarray  # index of each row in the batch


@dataclass(frozen=True)
class _End:
    """A possible end of the run: `after` slots past the last slot that serves one of `sequences`, which are given as
    pairs (component index, sequence index).
    """

    sequences: list[tuple[int, int]]
    after: int
    reason: str


class SequenceOrder:
    """The order in which the sequences of a mixture are read. `names`, `streams` and all arrays with one entry per
    component are ordered by component name. `ending` is the reason why the run ends. Raises LoaderError if the windows
    do not fit in memory, if a sequence length does not fit in a component's blocks, or if the end of the run is too far
    ahead to compute or, with `stop` "all_exhausted", never reached.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.mixture = mixture
        self.axis: SlotAxis = SlotAxis(mixture.batches)
        self.lengths: Schedule = mixture.lengths
        self.names: list[str] = mixture.used()
        sources = {name: training_source(mixture.components[name], name, mixture.simulate) for name in self.names}
        self.grants: dict[str, Grant] = grant_windows(
            {name: _claim(mixture.components[name], sources[name]) for name in self.names}, mixture.memory_bytes
        )
        self.stages: list[tuple[int, dict[str, float]]] = [
            (stage.first_slot(self.axis), dict(stage.weights)) for stage in mixture.stage_list()
        ]
        self.slot_order: SlotOrder = SlotOrder(self.names, self.stages, mixture.block, mixture.seed)
        self.excluded: dict[str, ExcludedTokens] = self._excluded(sources)
        self.streams: list[Stream] = [self._stream(name, sources[name]) for name in self.names]
        for step, length in self.lengths.changes()[1:]:
            served = self.slot_order.served(self.axis.first_slot(step))
            for name, stream, sequences in zip(self.names, self.streams, served.tolist(), strict=True):
                self._require_memory(name, stream, sequences, step)
                stream.change_length(sequences, length)
        self.slots: int | None = self._end()

    @property
    def steps(self) -> int | None:
        """Number of batches in the run; None if it never ends."""
        if self.slots is None:
            return None
        full = self.axis.step_of(self.slots)
        partial = self.mixture.final_batch == "pad" and self.axis.first_slot(full) < self.slots
        return full + partial

    def picks(self, step: int, first: int, last: int) -> list[Pick]:
        """Return the picks for rows first..last-1 of batch `step`. No pick contains rows after the end of the run."""
        slot = self.axis.first_slot(step)
        end = slot + last if self.slots is None else min(slot + last, self.slots)
        components, sequences = self.slot_order.rows(slot + first, max(slot + first, end))
        picks = []
        for number in range(len(self.names)):
            rows = np.flatnonzero(components == number)
            picks.extend(self._windows(number, sequences[rows], rows))
        return picks

    def served_before(self, step: int) -> list[int]:
        return self.slot_order.served(self.axis.first_slot(step)).tolist()

    def require(self, steps: int) -> None:
        """If the run has fewer than `steps` batches, raise a LoaderError that states why it ends."""
        if self.steps is not None and self.steps < steps:
            raise LoaderError(
                f"the mixture ends after {self.steps:,} of {steps:,} batches: {self.ending}; reduce the weights "
                "of components that end too early or give them more epochs, or make the run shorter"
            )

    def _require_memory(self, name: str, stream: Stream, sequence: int, step: int) -> None:
        """Raise LoaderError if joining the unread sequences of a full shuffle would take too much memory. The windows
        of other shuffles are limited by `memory_bytes` anyway.
        """
        window, limit = stream.window_at(sequence), max(self.mixture.memory_bytes, SMALL_JOIN)
        need = (window.first + window.count - sequence) * JOIN_BYTES
        if sequence > window.first and not self.grants[name].resident and need > limit:
            raise LoaderError(
                f"component {name!r}: the sequence length changes at step {step:,} in the middle of a full shuffle; "
                f"joining the unread sequences would take about {need / (1 << 30):,.1f} GiB, and memory_bytes is "
                f"{self.mixture.memory_bytes:,}; use shuffle 'block', or keep the length"
            )

    def _windows(self, number: int, sequences: np.ndarray, rows: np.ndarray) -> list[Pick]:
        """Make one pick per window from one component's sequences, which must be in ascending order."""
        picks, at, stream = [], 0, self.streams[number]
        while at < len(sequences):
            window = stream.window_at(int(sequences[at]))
            after = window.first + window.count
            end = len(sequences) if sequences[-1] < after else int(np.searchsorted(sequences, after))
            units, inside = window.at(sequences[at:end] - window.first)
            picks.append(Pick(number, window, units, inside, rows[at:end]))
            at = end
        return picks

    def _stream(self, name: str, source: TokenSource) -> Stream:
        component, grant = self.mixture.components[name], self.grants[name]
        settings = StreamSettings(
            name=name,
            seed=self.mixture.seed,
            block_tokens=component.shuffle.block_tokens,
            window_blocks=grant.blocks,
            shuffled=component.shuffle.kind != "none",
            packing=component.packing,
        )
        counts, excluded = dict(component.packing_counts or {}), self.excluded.get(name)
        return Stream(source, settings, self.lengths.at(0), counts, excluded)

    def _excluded(self, sources: dict[str, TokenSource]) -> dict[str, ExcludedTokens]:
        components = {name: self.mixture.components[name] for name in self.names}
        bases = {name: component.source for name, component in components.items()}
        longest = max(length for _, length in self.lengths.pairs)
        dropping = (name for name, one in components.items() if one.packing and one.packing.too_long == "drop")
        return excluded_tokens(self.mixture.exclusions, bases, sources, dict.fromkeys(dropping, longest))

    def _end(self) -> int | None:
        """Return the number of slots in the run, or None if it never ends. Sets `ending`. Raises LoaderError if `stop`
        is "all_exhausted" and the run never ends.
        """
        self.ending: str = "it never ends"
        end = None
        for bound, possible in sorted(((self._bound(each), each) for each in self._ends()), key=lambda pair: pair[0]):
            if bound == float("inf") or (end is not None and bound > end):
                continue
            served = [self.slot_order.slot_of(i, sequence) for i, sequence in possible.sequences]
            slot = max(slot for slot in served if slot is not None) + possible.after
            if end is None or slot < end:
                end, self.ending = slot, possible.reason
        if end is None and self.mixture.stop == "all_exhausted":
            self._refuse_endless()
        return end

    def _bound(self, possible: _End) -> float:
        """Return a lower bound for the slot of an end, without computing blocks; infinity if the end is not reached."""
        return max(self.slot_order.earliest(i, sequence) for i, sequence in possible.sequences)

    def _ends(self) -> list[_End]:
        """Return the possible ends: for each limit on a component's epochs, the first slot that would exceed the limit;
        if `stop` is "all_exhausted", the slot by which every component has completed an epoch.
        """
        names, stop = self.names, self.mixture.stop
        limits = [(i, self.mixture.components[name].max_epochs) for i, name in enumerate(names)]
        limits += [(i, 1) for i in range(len(names)) if stop == "first_exhausted"]
        ends = [self._limit(i, epochs) for i, epochs in limits if epochs is not None]
        if stop == "all_exhausted":
            last = [(i, stream.end_of_epochs(1) - 1) for i, stream in enumerate(self.streams)]
            ends.append(_End(last, 1, "every component has completed an epoch"))
        return ends

    def _limit(self, i: int, epochs: int) -> _End:
        reason = f"component {self.names[i]!r} has completed {epochs} epoch{'s'[: epochs > 1]}"
        return _End([(i, self.streams[i].end_of_epochs(epochs))], 0, reason)

    def _refuse_endless(self) -> None:
        last = [_End([(i, stream.end_of_epochs(1) - 1)], 1, "") for i, stream in enumerate(self.streams)]
        name = next(name for name, each in zip(self.names, last, strict=True) if self._bound(each) == float("inf"))
        raise LoaderError(
            f"stop is 'all_exhausted', but the weight of component {name!r} becomes 0 before its first epoch ends, so "
            "the run never ends; keep this weight above 0, or set max_epochs for a component whose weight stays above 0"
        )


def _claim(component: Component, source: TokenSource) -> Claim:
    token_bytes = source.dtype.itemsize + source.has_loss_mask
    return Claim(BlockAxis(source.tokens, component.shuffle.block_tokens), token_bytes, component.shuffle)
