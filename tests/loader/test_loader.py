"""Batches depend only on mixture and step: not on hosts, threads, memory or earlier reads."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.reader import open_cache
from datakit.errors import LoaderError
from datakit.loader import CacheSource, Component, Loader, Mixture, Packing, Schedule, Shuffle, Stage, open_source
from tests.support.loader.mixture_files import cache
from tests.support.loader.mixtures import two_components
from tests.support.loader.sources import counting, random_lengths, real_tokens
from tests.support.paths import REPOSITORY

__all__ = ["cache"]  # a fixture
NAMES = ("books", "code", "web")


@st.composite
def mixtures(draw: st.DrawFn, hosts: int = 1) -> Mixture:
    """Three components of different kinds, stages at any slot, changing lengths and batch sizes."""
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
@settings(max_examples=12, deadline=None)
def test_batches_ignore_hosts_and_resumes(data: st.DataObject, hosts: int, start: int, in_flight: int) -> None:
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
@settings(max_examples=8, deadline=None)
def test_each_epoch_serves_each_token_once(mixture: Mixture, component: int) -> None:
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


def test_rows_are_a_part_of_the_batch() -> None:
    with Loader(two_components()) as loader:
        assert np.array_equal(loader.rows(5, 3, 6).tokens, loader[5].tokens[3:6])


def test_fixed_windows_ignore_memory_and_threads() -> None:
    def batches(memory: int, in_flight: int) -> list[list[list[int]]]:
        shuffle = Shuffle(block_tokens=64, window_blocks=3)
        components = {name: Component(counting([9] * 400), shuffle=shuffle) for name in "ab"}
        mixture = Mixture(components, {"a": 1, "b": 2}, sequence_length=16, batch_size=4, memory_bytes=memory)
        with Loader(mixture, in_flight=in_flight) as loader:
            return [batch.tokens.tolist() for batch in loader.iterate(0, 40)]

    assert batches(1 << 13, 1) == batches(1 << 22, 8)


def test_step_outside_the_run_is_refused() -> None:
    with Loader(two_components(stop="first_exhausted")) as loader:
        assert loader.steps is not None
        for step in (-1, loader.steps):
            with pytest.raises(IndexError, match="component 'a' has completed 1 epoch"):
                loader[step]


def test_hosts_must_share_batches_evenly() -> None:
    with pytest.raises(LoaderError, match=r"batch_size 8 .* cannot be split evenly over 3 hosts"):
        Loader(two_components(), hosts=3)
    with pytest.raises(LoaderError, match=r"host is 2; .* less than hosts \(2\)"):
        Loader(two_components(), host=2, hosts=2)


def test_loader_can_be_pickled() -> None:
    with Loader(two_components(), segments=False) as loader, pickle.loads(pickle.dumps(loader)) as copy:
        assert np.array_equal(copy[7].tokens, loader[7].tokens)
        assert copy.options == loader.options


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_cannot_use_its_parents_loader() -> None:
    def use() -> None:
        try:
            _ = loader[0]
        except LoaderError as error:
            os._exit(0 if "before a fork" in str(error) else 1)
        os._exit(2)

    with Loader(two_components()) as loader:
        child = os.fork()
        if not child:
            use()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_packing_report_counts_by_length() -> None:
    components = {"x": Component(counting([5, 30, 7]), packing=Packing("truncate")), "y": Component(counting([9]))}
    with Loader(Mixture(components, {"x": 1, "y": 1}, sequence_length=Schedule(((0, 10), (5, 40))))) as loader:
        report = loader.packing_report()
    assert set(report) == {"x"}
    assert (report["x"][10].truncated, report["x"][10].kept, report["x"][10].padding) == (1, 22, 8)
    assert (report["x"][40].truncated, report["x"][40].kept, report["x"][40].padding) == (0, 42, 38)


@pytest.mark.parametrize("packing", [None, Packing()])
def test_segments_end_where_documents_do(cache: Path, packing: Packing | None) -> None:
    end = open_cache(str(cache)).contract.eos
    assert end is not None
    components = {
        name: Component(open_source(str(cache), name), packing, Shuffle(block_tokens=4096, window_blocks=2))
        for name in ("code", "web")
    }
    mixture = Mixture(components, {"code": 1, "web": 2}, sequence_length=512, batch_size=8, pad_id=65535)
    with Loader(mixture) as loader:
        for batch in loader.iterate(0, 20):
            last = (batch.segments[:, :-1] != batch.segments[:, 1:]) & (batch.segments[:, :-1] > 0)
            assert (batch.tokens[:, :-1][last] == end.id).all()
            assert np.count_nonzero(batch.tokens[:, :-1] == end.id) == np.count_nonzero(last)


def test_epoch_serves_all_tokens_of_a_cache(cache: Path) -> None:
    source = open_source(str(cache))
    mixture = Mixture(
        {"all": Component(source, shuffle=Shuffle(block_tokens=4096))}, {"all": 1}, sequence_length=128, batch_size=16,
        stop="first_exhausted", final_batch="pad", memory_bytes=1 << 17,
    )  # fmt: skip
    with Loader(mixture) as loader, pickle.loads(pickle.dumps(loader)) as copy:
        seen = np.concatenate([real_tokens(batch) for batch in loader])
        assert np.array_equal(copy[5].tokens, loader[5].tokens)
    assert np.array_equal(np.sort(seen), np.sort(source.read(0, source.tokens)))


def test_loader_imports_no_heavy_library(cache: Path) -> None:
    """A process that reads batches with segments loads numpy, TensorStore and little more."""
    script = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from datakit.loader import Component, Loader, Mixture, open_source
source = open_source(sys.argv[1])
with Loader(Mixture({"x": Component(source)}, {"x": 1}, sequence_length=64)) as loader:
    assert loader[0].segments.any()
heavy = {"pyarrow", "numba", "duckdb", "jax", "torch", "ray", "tokenizers", "fsspec"} & set(sys.modules)
print(sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", script, str(cache)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_threads_share_a_loader() -> None:
    """Which thread asks for a batch, and in which order, changes nothing; thread switches come as often as possible."""
    mixture = Mixture(
        {name: Component(counting([7] * 3000)) for name in ("a", "b")},
        {"a": 1.0, "b": 0.3},
        sequence_length=16,
        batch_size=4,
        block=8,
    )
    steps = [int(step) for step in np.random.default_rng(0).integers(0, 20_000, 400)]
    with Loader(mixture) as loader:
        expected = [loader[step].tokens for step in steps]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Loader(mixture) as loader, ThreadPoolExecutor(8) as pool:
            iterations = [pool.submit(lambda: [batch.tokens for batch in loader.iterate(7, 60)]) for _ in range(2)]
            found = list(pool.map(lambda step: loader[step].tokens, steps))
            served = [iteration.result() for iteration in iterations]
            alone = [loader[step].tokens for step in range(7, 60)]
    finally:
        sys.setswitchinterval(interval)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert all(np.array_equal(np.stack(one), np.stack(alone)) for one in served)


def test_steps_and_rows_are_checked() -> None:
    with Loader(two_components(batch_size=4)) as loader:
        assert np.array_equal(loader[np.int64(3)].tokens, loader[3].tokens)
        assert np.array_equal(loader.rows(np.int32(2), 1, 3).tokens, loader[2].tokens[1:3])
        for first, last in ((2, 9), (-1, 2), (3, 2), (4, 4)):
            with pytest.raises(IndexError, match="batch 2 has 4 rows; rows"):
                loader.rows(2, first, last)
        with pytest.raises(IndexError, match="there is no batch -1"):
            loader.iterate(-1)
        with pytest.raises(TypeError):
            loader[1.5]  # type: ignore[index]


def loader_of(cache: Path, steps: int | None = None, **more: Any) -> Loader:
    source = open_source(str(cache))
    components = {"web": Component(source, max_epochs=None if steps is None else 1)}
    return Loader(Mixture(components, [Stage({"web": 1.0})], sequence_length=16, batch_size=4, **more))


def test_a_loader_is_a_sequence_of_batches(cache: Path) -> None:
    with loader_of(cache, steps=1) as loader:
        assert [batch.step for batch in loader[2:5]] == [2, 3, 4]
        assert [batch.step for batch in loader[-2:]] == [len(loader) - 2, len(loader) - 1]
        assert np.array_equal(loader[1:9][3].tokens, loader[4].tokens)
        assert len(loader[::2]) == -(-len(loader) // 2)
        assert repr(loader) == f"Loader(web: {len(loader):,} batches of 4 x 16 tokens)"
        assert repr(loader[0]).startswith("Batch(step 0, 4 x 16 tokens, 0 padding; rows: web 4")
    with loader_of(cache) as endless:
        assert [batch.step for batch in endless[2:4]] == [2, 3]
        for part in (slice(2, None), slice(-3, None), slice(-3, 5)):
            with pytest.raises(IndexError, match="needs an end"):
                endless[part]


def test_a_loader_has_its_components_tokenizer_or_says_why_not(cache: Path) -> None:
    with loader_of(cache) as loader:
        source = loader.sources["web"]
        assert isinstance(source, CacheSource)
        assert loader.tokenizer.to_str() == source.cache.tokenizer.to_str()
    with (
        Loader(
            Mixture({"a": Component(counting([999]))}, [Stage({"a": 1.0})], sequence_length=16, batch_size=2)
        ) as bare,
        pytest.raises(LoaderError, match="component 'a' is not read from a cache"),
    ):
        bare.tokenizer  # noqa: B018


def test_the_example_of_a_sequence_of_batches_in_the_documentation_runs(cache: Path) -> None:
    page = (REPOSITORY / "docs" / "loader.md").read_text()
    examples = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if text.startswith("loader =")]
    assert len(examples) == 1
    with loader_of(cache) as loader:
        exec(examples[0], {"Loader": Loader, "mixture": loader.mixture})
