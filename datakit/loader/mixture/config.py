"""Defines a mixture's settings (components, shuffles, weights per stage) with their defaults, and rejects invalid or
contradictory values.

    Mixture(
        components={"web": Component(open_source("data/demo/tokenize-..."), packing=None), ...},
        stages=[Stage({"web": 0.9, "code": 0.1}), Stage({"web": 0.5, "code": 0.5}, start_step=90_000)],
        seed=0, sequence_length=4096, batch_size=512,
    )

The checks read no tokens. All settings of a Mixture affect what the batches contain or where the run ends. Even
`memory_bytes` does, because it determines how many blocks are shuffled together. Settings that do not affect the
batches, such as the number of threads and the read-ahead, belong to the Loader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from datakit.errors import LoaderError, suggestion
from datakit.loader.mixture.apportion import MAX_BLOCK
from datakit.loader.mixture.packing import Packing
from datakit.loader.mixture.schedule import Schedule, SlotAxis
from datakit.loader.sources.cache_source import share_tokens
from datakit.loader.sources.exclusions import Exclusion, check_exclusions
from datakit.loader.sources.token_source import BLOCK_TOKENS, TokenSource

KINDS = ("block", "full", "none")
STOPS = ("restart", "first_exhausted", "all_exhausted")
FINAL_BATCHES = ("drop", "pad")


@dataclass(frozen=True)
class Shuffle:
    """The way in which a component's sequences are shuffled. The kind `block` permutes blocks of tokens, then the
    sequences inside each window of blocks. `full` permutes all sequences of an epoch; unless the component fits in
    memory, each sequence is then read separately. `none` keeps the source's order. If `window_blocks` is None, a window
    has as many blocks as the mixture's memory allows.
    """

    kind: str = "block"
    block_tokens: int = BLOCK_TOKENS
    window_blocks: int | None = None

    def check(self, name: str) -> None:
        if self.kind not in KINDS:
            raise LoaderError(f"component {name!r}: shuffle is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if self.block_tokens < 1:
            raise LoaderError(f"component {name!r}: block_tokens is {self.block_tokens}; it must be at least 1")
        if self.window_blocks is not None and (self.window_blocks < 1 or self.kind != "block"):
            raise LoaderError(
                f"component {name!r}: window_blocks is {self.window_blocks} with shuffle {self.kind!r}; "
                "it must be at least 1, and only a block shuffle has a window"
            )


@dataclass(frozen=True)
class Component:
    """One source in the mixture, and how it is read. If `packing` is None, documents are laid end to end and cut into
    sequences; a Packing keeps documents whole if they fit in a sequence. `packing_counts` maps a sequence length to the
    stored number of sequences in each block, int32 [blocks]. About `validation_tokens` tokens are held out for
    validation. The run ends before the component would exceed `max_epochs`.
    """

    source: TokenSource
    packing: Packing | None = None
    shuffle: Shuffle = field(default_factory=Shuffle)
    validation_tokens: int = 0
    max_epochs: int | None = None
    packing_counts: Mapping[int, np.ndarray] | None = None

    def check(self, name: str) -> None:
        self.shuffle.check(name)
        if self.packing is not None:
            self.packing.check(name)
        if self.source.tokens < 1:
            raise LoaderError(
                f"component {name!r} has no tokens; check the name of its source, and that its cache is complete"
            )
        if self.max_epochs is not None and self.max_epochs < 1:
            raise LoaderError(f"component {name!r}: max_epochs is {self.max_epochs}; it must be at least 1")
        if self.validation_tokens < 0:
            raise LoaderError(
                f"component {name!r}: validation_tokens is {self.validation_tokens}; it must be 0 or more"
            )
        if self.packing_counts is not None and self.packing is None:
            raise LoaderError(
                f"component {name!r} has packing_counts but no packing; set packing, or remove packing_counts"
            )


@dataclass(frozen=True)
class Stage:
    """The components' weights from a given step or slot (the index of a sequence in the run) onward. The weights need
    not sum to 1; an omitted component has weight 0.
    """

    weights: Mapping[str, float]
    start_step: int | None = None
    start_slot: int | None = None

    def first_slot(self, axis: SlotAxis) -> int:
        return axis.first_slot(self.start_step or 0) if self.start_slot is None else self.start_slot


@dataclass(frozen=True)
class SimulatedEpochs:
    """Shrinks every component so that a run of `run_tokens` repeats data as often as a run of `target_tokens` would."""

    run_tokens: int
    target_tokens: int

    def kept(self, tokens: int) -> int:
        return max(1, tokens * self.run_tokens // self.target_tokens)


@dataclass(frozen=True)
class Mixture:
    """Components, their weights per stage, and all other settings that determine the batches. `block` and `batch_size`
    are numbers of sequences (`batch_size` over all hosts); `sequence_length` is a number of tokens. For invalid or
    contradictory values, raises a LoaderError that names the component, stage or setting.
    """

    components: Mapping[str, Component]
    stages: Sequence[Stage] | Mapping[str, float]
    seed: int = 0
    sequence_length: int | Schedule = 4096
    batch_size: int | Schedule = 32
    block: int = 2048
    stop: str = "restart"
    memory_bytes: int = 1 << 30
    simulate: SimulatedEpochs | None = None
    final_batch: str = "drop"
    pad_id: int = 0
    exclusions: Sequence[Exclusion] = ()

    def __post_init__(self) -> None:
        for name, value, known in (("stop", self.stop, STOPS), ("final_batch", self.final_batch, FINAL_BATCHES)):
            if value not in known:
                raise LoaderError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        if not 1 <= self.block < MAX_BLOCK:
            raise LoaderError(f"block is {self.block}; a mixture block has 1 to {MAX_BLOCK - 1} sequences")
        if self.simulate is not None and not 0 < self.simulate.run_tokens <= self.simulate.target_tokens:
            raise LoaderError(
                f"simulate: run_tokens is {self.simulate.run_tokens:,}; it must be from 1 to target_tokens "
                f"({self.simulate.target_tokens:,})"
            )
        for name, component in self.components.items():
            component.check(name)
        self._check_stages()
        self._check_held_out()
        check_exclusions(self.exclusions)
        _ = self.lengths, self.batches

    @property
    def lengths(self) -> Schedule:
        return Schedule.of(self.sequence_length, "sequence_length")

    @property
    def batches(self) -> Schedule:
        return Schedule.of(self.batch_size, "batch_size")

    def stage_list(self) -> list[Stage]:
        return [Stage(self.stages)] if isinstance(self.stages, Mapping) else list(self.stages)

    def used(self) -> list[str]:
        """Return the names of the components with a positive weight in any stage, in alphabetical order."""
        return sorted({name for stage in self.stage_list() for name, weight in stage.weights.items() if weight > 0})

    def _check_stages(self) -> None:
        stages, axis = self.stage_list(), SlotAxis(self.batches)
        if not stages:
            raise LoaderError("a mixture needs at least one stage")
        before = -1
        for number, stage in enumerate(stages):
            if stage.start_step is not None and stage.start_slot is not None:
                raise LoaderError(f"stage {number} has both start_step and start_slot; give only one of them")
            first = stage.first_slot(axis)
            if first <= before or (number == 0 and first):
                rule = "the first stage must start at 0" if number == 0 else f"stage {number - 1} starts at {before}"
                raise LoaderError(f"stage {number} starts at slot {first}, but {rule}; list stages in ascending order")
            before = first
            self._check_weights(number, stage.weights)

    def _check_weights(self, number: int, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            if name not in self.components:
                raise LoaderError(unknown_component(number, name, self.components))
            if not (math.isfinite(weight) and weight >= 0):
                raise LoaderError(
                    f"stage {number}: the weight of {name!r} is {weight}; it must be finite and not negative"
                )
        if not any(weight > 0 for weight in weights.values()):
            raise LoaderError(f"stage {number}: no component has a weight above 0")

    def _check_held_out(self) -> None:
        """Raise LoaderError if one component would train on documents that another holds out."""
        used = self.used()
        for (a, one), (b, other) in combinations(sorted(self.components.items()), 2):
            at_risk = (a in used and other.validation_tokens) or (b in used and one.validation_tokens)
            if not at_risk or not share_tokens(one.source, other.source):
                continue
            if one.source.identity != other.source.identity:
                raise LoaderError(
                    f"component {a!r} would train on documents that {b!r} holds out, or vice versa: one reads a "
                    "whole cache, and the other reads one source of that cache; give each component its own source, "
                    "or remove validation_tokens"
                )
            if one.validation_tokens != other.validation_tokens:
                raise LoaderError(
                    f"components {a!r} and {b!r} read the same tokens, but their validation_tokens are "
                    f"{one.validation_tokens:,} and {other.validation_tokens:,}, so one would train on documents "
                    "that the other holds out; give both components the same value"
                )


def unknown_component(stage: int, name: str, known: Iterable[str]) -> str:
    """Return the message about a stage whose weights name a component that does not exist."""
    return f"stage {stage}: there is no component {name!r}; {suggestion(name, known)}"
