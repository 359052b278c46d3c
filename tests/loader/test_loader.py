"""`loader[step]` is a pure function of mixture and step: not of hosts, threads, memory or what was read before."""

from __future__ import annotations

import os
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import LoaderError
from datakit.loader import ArraySource, Component, Loader, Mixture, Packing, Schedule, Shuffle, Stage
from tests.support.loader_sources import counting, random_lengths, real_tokens

NAMES = ("books", "code", "web")


@st.composite
def mixtures(draw: st.DrawFn, hosts: int = 1) -> Mixture:
    """Three components of each kind, stages at any slot, lengths and batch sizes that change."""
    kinds = draw(st.permutations([(None, "block"), (Packing(), "block"), (None, "full")]))
    components = {}
    for i, (name, (packing, kind)) in enumerate(zip(NAMES, kinds, strict=True)):
        sizes = random_lengths(draw(st.integers(0, 99)), draw(st.integers(5, 40)), 40)
        shuffle = Shuffle(kind, 64, draw(st.integers(1, 4)) if kind == "block" else None)
        components[name] = Component(counting([*sizes, 64 * i]), packing=packing, shuffle=shuffle)
    weights = st.lists(st.floats(0.001, 1000), min_size=3, max_size=3)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 200), max_size=3)))]
    stages = [Stage(dict(zip(NAMES, draw(weights), strict=True)), start_slot=start) for start in starts]
    return Mixture(
        components,
        stages,
        seed=draw(st.integers(0, 2**40)),
        sequence_length=draw(schedules(st.integers(1, 40))),
        batch_size=draw(schedules(st.integers(1, 3).map(lambda rows: rows * hosts))),
        block=draw(st.integers(1, 50)),
        memory_bytes=1 << 16,
    )


@st.composite
def schedules(draw: st.DrawFn, values: st.SearchStrategy[int]) -> Schedule:
    steps = [0, *sorted(draw(st.sets(st.integers(1, 12), max_size=2)))]
    return Schedule(tuple((step, draw(values)) for step in steps))


@given(st.data(), st.integers(1, 16), st.integers(0, 12), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_the_global_order_does_not_know_hosts_or_resumes(
    data: st.DataObject, hosts: int, start: int, in_flight: int
) -> None:
    mixture = data.draw(mixtures(hosts))
    with Loader(mixture) as one:
        expected = [one[step] for step in range(start + 5)]
    with Loader(mixture, batches_ahead=start % 3) as one:
        resumed = list(one.iterate(start, start + 5))
    assert [batch.step for batch in resumed] == list(range(start, start + 5))
    for batch in resumed:
        assert np.array_equal(batch.tokens, expected[batch.step].tokens)
        assert np.array_equal(batch.segments, expected[batch.step].segments)
    for host in sorted({0, hosts // 2, hosts - 1}):
        with Loader(mixture, host=host, hosts=hosts, in_flight=in_flight) as part:
            for batch in part.iterate(start, start + 3):
                rows = mixture.batches.at(batch.step) // hosts
                whole = expected[batch.step]
                assert np.array_equal(batch.tokens, whole.tokens[host * rows : (host + 1) * rows])
                assert np.array_equal(batch.components, whole.components[host * rows : (host + 1) * rows])


@given(mixtures(), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_a_mixture_gives_each_token_of_each_component_once_an_epoch(mixture: Mixture, component: int) -> None:
    with Loader(mixture) as loader:
        stream = loader.order.streams[component]
        size = stream.end_of_epochs(1)
        seen, rows, step = [], 0, 0
        while rows < size and step < 4000:
            batch = loader[step]
            mine = np.flatnonzero(batch.components == component)[: size - rows]
            seen.extend(batch.tokens[row, : batch.lengths[row]] for row in mine)
            rows, step = rows + len(mine), step + 1
        if rows == size:
            assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(stream.source.tokens))


def two(**settings_: Any) -> Mixture:
    components = {"a": Component(counting([7] * 200)), "b": Component(counting([11] * 100))}
    return Mixture(
        components, {"a": 0.75, "b": 0.25}, **{"sequence_length": 10, "batch_size": 8, "block": 16, **settings_}
    )


def test_rows_of_any_sharding_are_rows_of_the_batch() -> None:
    with Loader(two()) as loader:
        assert np.array_equal(loader.rows(5, 3, 6).tokens, loader[5].tokens[3:6])


def test_memory_and_threads_change_nothing_where_the_window_is_named() -> None:
    def batches(memory: int, in_flight: int) -> list[list[list[int]]]:
        shuffle = Shuffle(block_tokens=64, window_blocks=3)
        components = {name: Component(counting([9] * 400), shuffle=shuffle) for name in "ab"}
        mixture = Mixture(components, {"a": 1, "b": 2}, sequence_length=16, batch_size=4, memory_bytes=memory)
        with Loader(mixture, in_flight=in_flight) as loader:
            return [batch.tokens.tolist() for batch in loader.iterate(0, 40)]

    assert batches(1 << 13, 1) == batches(1 << 22, 8)


def test_a_step_that_is_not_there() -> None:
    with Loader(two(stop="first_exhausted")) as loader:
        assert loader.steps is not None
        for step in (-1, loader.steps):
            with pytest.raises(IndexError, match="component 'a' has completed 1 epoch"):
                loader[step]


def test_hosts_must_share_evenly() -> None:
    with pytest.raises(LoaderError, match=r"3 hosts cannot share batch_size 8"):
        Loader(two(), hosts=3)
    with pytest.raises(LoaderError, match="host 2 of 2"):
        Loader(two(), host=2, hosts=2)


def test_a_loader_can_be_sent_to_a_worker_process() -> None:
    with Loader(two(), segments=False) as loader, pickle.loads(pickle.dumps(loader)) as copy:
        assert np.array_equal(copy[7].tokens, loader[7].tokens)
        assert copy.options == loader.options


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_not_to_use_its_parent_s_loader() -> None:
    def use() -> None:
        try:
            _ = loader[0]
        except LoaderError as error:
            os._exit(0 if "before a fork" in str(error) else 1)
        os._exit(2)

    with Loader(two()) as loader:
        child = os.fork()
        if not child:
            use()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- reading ahead


class Watched(ArraySource):
    """A source that takes its time, counts who reads at once, and fails when told to."""

    def __init__(self, tokens: np.ndarray, seconds: float = 0.0) -> None:
        super().__init__(tokens, [len(tokens)])
        self.seconds, self.reading, self.most, self.reads, self.broken = seconds, 0, 0, 0, False
        self.lock = threading.Lock()

    def read(self, start: int, stop: int) -> np.ndarray:
        with self.lock:
            self.reading += 1
            self.reads += 1
            self.most = max(self.most, self.reading)
        time.sleep(self.seconds)
        with self.lock:
            self.reading -= 1
        if self.broken:
            raise OSError("the disk is on fire")
        return super().read(start, stop).copy()


def watched(seconds: float, memory_blocks: int = 16) -> tuple[Watched, Mixture]:
    source = Watched(np.arange(256 * 64, dtype=np.uint32), seconds)
    component = Component(source, shuffle=Shuffle(block_tokens=256))
    return source, Mixture(
        {"x": component}, {"x": 1}, sequence_length=32, batch_size=8, memory_bytes=memory_blocks * 1024
    )


def test_reads_overlap_and_run_ahead_of_a_slow_model() -> None:
    source, mixture = watched(0.01)
    with Loader(mixture, in_flight=4) as loader:
        for batch in loader.iterate(0, 64):
            if batch.step > 8:
                time.sleep(0.012)  # a model's step; each needs one block of 10 ms
        found = loader.metrics.snapshot()
    assert source.most == 4
    assert found["reads"] <= 64 + 16
    assert found["hit_rate"] > 0.9


def test_memory_stays_within_the_budget() -> None:
    source, mixture = watched(0.0)
    with Loader(mixture) as loader:
        most = 0
        for _ in loader.iterate(0, 128):
            most = max(most, loader._pool.used_bytes)
        assert loader.metrics.snapshot()["evictions"] > 50
    assert most <= mixture.memory_bytes * 1.2  # beside the tokens each block has its borders
    assert source.reads <= 2 * 64 + 16  # each block once an epoch, and what was read ahead


def test_what_fits_in_memory_is_read_once() -> None:
    source, mixture = watched(0.0, memory_blocks=100)
    with Loader(mixture) as loader:
        for _ in loader.iterate(0, 256):
            pass
    assert source.reads == 64


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_failing_read_is_raised_where_the_batch_is_asked_for_and_tried_again_next_time(ahead: int) -> None:
    source, mixture = watched(0.0)
    with Loader(mixture, batches_ahead=ahead) as loader:
        expected = loader[3].tokens
        source.broken = True
        with pytest.raises(OSError, match="on fire"):
            for _ in loader.iterate(20, 40):
                pass
        source.broken = False
        assert np.array_equal(loader[3].tokens, expected)
        assert [batch.step for batch in loader.iterate(20, 22)] == [20, 21]


@pytest.mark.parametrize("ahead", [0, 2])
def test_nothing_is_left_running(ahead: int) -> None:
    def ours() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("datakit-loader")]

    _, mixture = watched(0.0)
    with Loader(mixture, batches_ahead=ahead) as loader:
        iterator = loader.iterate()
        next(iterator)
        assert ours()
        iterator.close()
    assert not ours()


def test_a_full_shuffle_reads_sequences_alone_and_only_where_they_do_not_fit() -> None:
    def reads(memory_blocks: int) -> tuple[float, float, list[int]]:
        source = Watched(np.arange(256 * 64, dtype=np.uint32))
        component = Component(source, shuffle=Shuffle("full", block_tokens=256))
        mixture = Mixture(
            {"x": component}, {"x": 1}, sequence_length=32, batch_size=8, memory_bytes=memory_blocks * 1024
        )
        with Loader(mixture) as loader:
            order = [token for batch in loader.iterate(0, 64) for token in batch.tokens[:, 0].tolist()]
            found = loader.metrics.snapshot()
        return found["reads"], found["bytes_read"], order

    alone, together = reads(4), reads(65)
    assert alone[2] == together[2]
    assert sorted(alone[2]) == list(range(0, 256 * 64, 32))
    assert alone[:2] == (512, 512 * 32 * 4)
    assert together[:2] == (64, 64 * 256 * 4)


def test_metrics_say_what_was_served() -> None:
    with Loader(two()) as loader:
        batches = list(loader.iterate(0, 50))
        found = loader.snapshot(50)
    assert found["batches"] == 50
    assert found["tokens"] == sum(len(real_tokens(batch)) for batch in batches)
    assert found["padding"] == sum(batch.padding for batch in batches)
    assert (found["rows/a"], found["rows/b"]) == (300, 100)
    assert found["epochs/a"] == pytest.approx(300 / 140)
    assert found["epochs/b"] == pytest.approx(100 / 110)
    assert found["bytes_read"] == 1400 * 4 + 1100 * 4


# --- the end of a run


def ending(stop: str) -> tuple[int | None, list[int], str]:
    """(steps, sequences of each component, why it ends): 140 of a at three quarters, 110 of b at one quarter."""
    components = {"a": Component(counting([10] * 140)), "b": Component(counting([10] * 110))}
    mixture = Mixture(components, {"a": 3, "b": 1}, sequence_length=10, batch_size=1, block=4, stop=stop)
    with Loader(mixture) as loader:
        rows = [] if loader.steps is None else [int(batch.components[0]) for batch in loader]
        return loader.steps, [rows.count(0), rows.count(1)], loader.order.ending


def test_restart_never_ends() -> None:
    assert ending("restart")[0] is None
    with Loader(two()) as loader:
        assert loader[10**6].tokens.shape == (8, 10)


def test_first_exhausted_ends_before_a_component_would_begin_again() -> None:
    steps, counts, why = ending("first_exhausted")
    assert steps == sum(counts)
    assert counts[0] == 140
    assert abs(counts[1] - 140 / 3) < 2
    assert why == "component 'a' has completed 1 epoch"


def test_all_exhausted_ends_when_each_component_has_given_an_epoch() -> None:
    steps, counts, why = ending("all_exhausted")
    assert steps == sum(counts)
    assert counts[1] == 110
    assert abs(counts[0] - 330) <= 3
    assert why == "every component has completed an epoch"


def test_no_component_goes_beyond_its_epochs() -> None:
    components = {"a": Component(counting([10] * 20), max_epochs=3), "b": Component(counting([10] * 500))}
    with Loader(Mixture(components, {"a": 0.5, "b": 0.5}, sequence_length=10, batch_size=1, block=8)) as loader:
        seen = [int(batch.tokens[0, 0]) for batch in loader if batch.components[0] == 0]
        assert loader.order.ending == "component 'a' has completed 3 epochs"
    assert sorted(seen) == sorted(list(range(0, 200, 10)) * 3)


def test_an_end_behind_a_change_of_length() -> None:
    mixture = Mixture(
        {"a": Component(counting([1000]), shuffle=Shuffle(block_tokens=100, window_blocks=2))}, {"a": 1},
        sequence_length=Schedule(((0, 10), (13, 25))), batch_size=2, stop="first_exhausted", final_batch="pad",
    )  # fmt: skip
    with Loader(mixture) as loader:
        seen = np.concatenate([real_tokens(batch) for batch in loader])
    assert np.array_equal(np.sort(seen), np.arange(1000))


def test_a_component_that_loses_its_weight_cannot_be_waited_for() -> None:
    components = {name: Component(counting([10] * 100)) for name in "ab"}
    stages = [Stage({"a": 1}), Stage({"b": 1}, start_slot=50)]
    with pytest.raises(LoaderError, match="'a' loses its weight"):
        Loader(Mixture(components, stages, sequence_length=10, stop="all_exhausted"))
