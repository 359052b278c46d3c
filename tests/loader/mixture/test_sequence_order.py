"""A run ends as its stop rule and max_epochs say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import Component, Loader, Mixture, Schedule, Shuffle, Stage
from datakit.loader.mixture import sequence_order
from datakit.loader.mixture.sequence_order import SequenceOrder
from datakit.loader.sources.token_source import RangeSource, TokenSource
from tests.support.fuzz.mixture_model import Case, Part
from tests.support.fuzz.mixtures import check
from tests.support.loader.mixtures import two_components
from tests.support.loader.sources import counting, real_tokens


def ending(stop: str) -> tuple[int | None, list[int], str]:
    """(steps, sequences of each component, why it ends): 140 of a at three quarters, 110 of b at one quarter."""
    components = {"a": Component(counting([10] * 140)), "b": Component(counting([10] * 110))}
    mixture = Mixture(components, {"a": 3, "b": 1}, sequence_length=10, batch_size=1, block=4, stop=stop)
    with Loader(mixture) as loader:
        rows = [] if loader.steps is None else [int(batch.components[0]) for batch in loader]
        return loader.steps, [rows.count(0), rows.count(1)], loader.order.ending


def test_restart_never_ends() -> None:
    assert ending("restart")[0] is None
    with Loader(two_components()) as loader:
        assert loader[10**5].tokens.shape == (8, 10)


def test_first_exhausted_ends_before_any_repetition() -> None:
    steps, counts, why = ending("first_exhausted")
    assert steps == sum(counts)
    assert counts[0] == 140
    assert abs(counts[1] - 140 / 3) < 2
    assert why == "component 'a' has completed 1 epoch"


def test_all_exhausted_ends_after_every_component() -> None:
    steps, counts, why = ending("all_exhausted")
    assert steps == sum(counts)
    assert counts[1] == 110
    assert abs(counts[0] - 330) <= 3
    assert why == "every component has completed an epoch"


def test_max_epochs_ends_the_run() -> None:
    components = {"a": Component(counting([10] * 20), max_epochs=3), "b": Component(counting([10] * 500))}
    with Loader(Mixture(components, {"a": 0.5, "b": 0.5}, sequence_length=10, batch_size=1, block=8)) as loader:
        seen = [int(batch.tokens[0, 0]) for batch in loader if batch.components[0] == 0]
        assert loader.order.ending == "component 'a' has completed 3 epochs"
    assert sorted(seen) == sorted(list(range(0, 200, 10)) * 3)


def test_end_after_a_change_of_length() -> None:
    mixture = Mixture(
        {"a": Component(counting([1000]), shuffle=Shuffle(block_tokens=100, window_blocks=2))}, {"a": 1},
        sequence_length=Schedule(((0, 10), (13, 25))), batch_size=2, stop="first_exhausted", final_batch="pad",
    )  # fmt: skip
    with Loader(mixture) as loader:
        seen = np.concatenate([real_tokens(batch) for batch in loader])
    assert np.array_equal(np.sort(seen), np.arange(1000))


def test_component_without_weight_cannot_be_exhausted() -> None:
    components = {name: Component(counting([10] * 100)) for name in "ab"}
    stages = [Stage({"a": 1}), Stage({"b": 1}, start_slot=50)]
    with pytest.raises(LoaderError, match="the weight of component 'a' becomes 0"):
        Loader(Mixture(components, stages, sequence_length=10, stop="all_exhausted"))


def losing_weight(**epochs: int) -> Mixture:
    """Component a loses its weight after 50 of its 100 sequences; `epochs` limits components."""
    components = {name: Component(counting([10] * 100), max_epochs=epochs.get(name)) for name in "ab"}
    stages = [Stage({"a": 1}), Stage({"b": 1}, start_slot=50)]
    return Mixture(components, stages, sequence_length=10, batch_size=1, stop="all_exhausted")


def test_max_epochs_ends_a_run_that_never_exhausts_every_component() -> None:
    with Loader(losing_weight(b=2)) as loader:
        assert (loader.steps, loader.order.ending) == (250, "component 'b' has completed 2 epochs")
    with pytest.raises(LoaderError, match="never ends; keep this weight above 0"):
        Loader(losing_weight(a=1))


@pytest.mark.parametrize(("stop", "steps"), [("all_exhausted", 40), ("restart", None)])
def test_limit_too_far_ahead_to_be_computed_matters_only_if_it_ends_the_run(stop: str, steps: int | None) -> None:
    components = {"a": Component(counting([10] * 20), max_epochs=10**12), "b": Component(counting([10] * 20))}
    mixture = Mixture(components, {"a": 1, "b": 1}, sequence_length=10, batch_size=1, block=2, stop=stop)
    if steps is None:
        with pytest.raises(LoaderError, match="too far ahead"):
            Loader(mixture)
        return
    with Loader(mixture) as loader:
        assert loader.steps in (steps - 1, steps)


FULL = Shuffle("full", block_tokens=1 << 20)


def huge() -> TokenSource:
    """10^13 tokens that cannot be read; only the order of their sequences is asked for."""
    return RangeSource(counting([1]), [(0, 10**13)])


def peak_of(work: Callable[[], Any]) -> int:
    """The largest amount of memory that Python and numpy had allocated at once for `work`."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_full_shuffle_of_any_size_keeps_to_its_memory() -> None:
    def read_order() -> None:
        order = SequenceOrder(
            Mixture({"x": Component(huge(), shuffle=FULL)}, {"x": 1}, sequence_length=4096, memory_bytes=256 << 20)
        )
        (stream,) = order.streams
        for epoch in range(3):
            window = stream.window_at(epoch * stream.end_of_epochs(1) + 5)
            units, _ = window.at(np.arange(0, window.count, 10**7))
            assert window.count > 2 * 10**9 and len(set(window.units.take(units))) == len(units)

    assert peak_of(read_order) < 64 << 20


def test_change_of_length_in_a_large_full_shuffle_is_refused() -> None:
    """The unread sequences of the whole epoch would be joined."""
    lengths = Schedule(((0, 4096), (100, 8192)))
    with pytest.raises(LoaderError, match=r"'x': .* at step 100 .* joining .* would take about 3\d\d\.\d GiB"):
        SequenceOrder(Mixture({"x": Component(huge(), shuffle=FULL)}, {"x": 1}, sequence_length=lengths))


def test_small_joins_are_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the change of length, 15,525 of 15,625 sequences are unread; joining them takes more than `memory_bytes`."""
    source = RangeSource(counting([1]), [(0, 10**6)])
    mixture = Mixture(
        {"x": Component(source, shuffle=Shuffle("full", block_tokens=512))},
        {"x": 1},
        sequence_length=Schedule(((0, 64), (100, 128))),
        batch_size=1,
        memory_bytes=100_000,
    )
    need = 15_525 * sequence_order.JOIN_BYTES
    monkeypatch.setattr(sequence_order, "SMALL_JOIN", need)
    SequenceOrder(mixture)
    monkeypatch.setattr(sequence_order, "SMALL_JOIN", need - 1)
    with pytest.raises(LoaderError, match="at step 100 in the middle of a full shuffle"):
        SequenceOrder(mixture)


def test_end_beyond_four_million_blocks_is_refused() -> None:
    """Found by a fuzzer: the second component would begin its third epoch after 4.18 million blocks."""
    shuffle = Shuffle("block", 20)
    parts = (Part((42,), shuffle=shuffle), Part((246,), shuffle=shuffle, max_epochs=2), Part((7,), shuffle=shuffle))
    case = Case(parts, ((0, (7.5, 0.001, 1.0)),), sizes=((0, 1),), batches=((0, 1),), block=1)
    check(case)
    with pytest.raises(LoaderError, match="too far ahead"):
        Loader(case.mixture())
