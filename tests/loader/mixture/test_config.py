"""Contradictions in a mixture are refused, with their place, before a token is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import (
    ArraySource,
    Component,
    Mixture,
    Packing,
    Schedule,
    SequenceOrder,
    Shuffle,
    SimulatedEpochs,
    Stage,
)
from datakit.loader.mixture.apportion import MAX_BLOCK
from tests.support.loader.sources import counting, random_lengths

COMPONENTS = {"web": Component(counting([10] * 100)), "code": Component(counting([10] * 50))}
EVEN = {"web": 1.0, "code": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": {"wed": 1.0}}, "did you mean 'web'"),
        ({"stages": {"web": -1.0}}, "the weight of 'web' is -1.0"),
        ({"stages": {"web": float("nan")}}, "the weight of 'web' is nan"),
        ({"stages": {"web": 0.0}}, "no component has a weight"),
        ({"stages": []}, "at least one stage"),
        ({"stages": [Stage(EVEN, start_step=5)]}, "the first stage must start at 0"),
        ({"stages": [Stage(EVEN), Stage(EVEN, start_slot=9), Stage(EVEN, start_slot=9)]}, "stage 2 starts at slot 9"),
        ({"stages": [Stage(EVEN), Stage(EVEN, start_slot=9, start_step=9)]}, "both start_step and start_slot"),
        ({"sequence_length": 0}, "sequence_length is 0 from step 0"),
        ({"sequence_length": Schedule(((1, 5),))}, "sequence_length: a schedule must start at step 0"),
        ({"batch_size": Schedule(((0, 5), (3, 2), (3, 1)))}, "batch_size: step 3 follows step 3"),
        ({"block": 0}, "block is 0"),
        ({"block": MAX_BLOCK}, "block is 65536"),
        ({"stop": "never"}, "stop is 'never'"),
        ({"final_batch": "keep"}, "final_batch is 'keep'"),
        ({"simulate": SimulatedEpochs(10, 5)}, r"run_tokens is 10; it must be from 1 to target_tokens \(5\)"),
        ({"memory_bytes": 100}, "memory_bytes is 100"),
        ({"components": {"web": Component(ArraySource(np.zeros(0, np.uint16)))}, "stages": {"web": 1}}, "no tokens"),
    ],
)
def test_invalid_mixture_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LoaderError, match=words):
        SequenceOrder(Mixture(**{"components": COMPONENTS, "stages": EVEN, "sequence_length": 10, **change}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shuffle": Shuffle("wild")}, "'web': shuffle is 'wild'"),
        ({"shuffle": Shuffle("full", window_blocks=3)}, "'web': window_blocks is 3 with shuffle 'full'"),
        ({"shuffle": Shuffle(block_tokens=0)}, "'web': block_tokens is 0"),
        ({"max_epochs": 0}, "'web': max_epochs is 0"),
        ({"validation_tokens": -1}, "'web': validation_tokens is -1"),
        ({"packing": Packing("cut")}, "'web': too_long is 'cut'"),
        ({"packing_counts": {10: np.ones(1)}}, "'web' has packing_counts but no packing"),
        ({"shuffle": Shuffle(block_tokens=5)}, "'web': sequences of 10 tokens do not fit in blocks of 5"),
    ],
)
def test_invalid_component_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LoaderError, match=words):
        SequenceOrder(Mixture({"web": replace(COMPONENTS["web"], **change)}, {"web": 1}, sequence_length=10))


def test_shared_sources_hold_out_the_same() -> None:
    source = counting(random_lengths(7, 60, 50))
    held, other, nothing = (Component(source, validation_tokens=tokens) for tokens in (200, 64, 0))
    packed = Component(counting(random_lengths(7, 60, 50)), Packing(), validation_tokens=200)
    Mixture({"a": held, "short": packed}, {"a": 1, "short": 1})
    Mixture({"a": held, "unused": nothing}, {"a": 1})
    both, first, last = {"a": 1, "b": 1}, {"a": 1}, {"b": 1}
    for second, weights in ((nothing, both), (other, both), (other, first), (nothing, last)):
        with pytest.raises(LoaderError, match=r"'a' and 'b' read the same tokens, .* would train on documents"):
            Mixture({"a": held, "b": second}, weights)
