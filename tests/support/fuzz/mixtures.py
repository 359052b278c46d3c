"""Compares the loader with a plain model of docs/loader.md: which sequences are served, when, and what is in a batch.

The model does not know the keys, so it predicts an order only where the docs do: the blocks of a window, the slots of
a mixture block, everything for `Shuffle("none")`. Token n of a source has the value n, so a row tells where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, floor

import numpy as np
from hypothesis import strategies as st

from datakit.errors import LoaderError
from datakit.loader import (
    Batch,
    Loader,
    Mixture,
    Packing,
    Shuffle,
    SimulatedEpochs,
)
from tests.support.fuzz.mixture_model import Axis, Case, Part, Row, block_rows

SLOTS = 150  # how much of a run is compared
MOST_BLOCKS = 4_000_000  # mixture blocks before the end of a run; docs/loader.md


@dataclass(frozen=True)
class Served:
    """A row of the run: its component, length, and the ranges of the component's axis that it holds."""

    component: int
    length: int
    row: Row


def check(case: Case) -> None:
    """Serve the mixture as if it never ended, compare all rows with the model, then the run with its own end."""
    parts = tuple(replace(part, max_epochs=None) for part in case.parts)
    try:
        mixture, endless = case.mixture(), replace(case, stop="restart", parts=parts).mixture()
        axes = [Axis.of(part, f"c{i}", case.simulate) for i, part in enumerate(case.parts)]
        whole = Loader(endless)
    except LoaderError:
        return
    with whole:
        used = list(whole.order.names)
        axes = [axes[int(name[1:])] for name in used]
        batches: list[Batch] = []
        while sum(len(batch.tokens) for batch in batches) < SLOTS and len(batches) < SLOTS:
            batches.append(whole[len(batches)])
        served = [row for batch in batches for row in _rows(case, batch, axes)]
        _check_slices(case, whole, batches)
    _check_kept(case)
    assert [len(batch.tokens) for batch in batches] == [_at(case.batches, step) for step in range(len(batches))]
    _check_shares(case, [axis.number for axis in axes], served)
    same_length = len({batch.tokens.shape[1] for batch in batches}) == 1
    for number, axis in enumerate(axes):
        _check_sequences(axis, [row for row in served if row.component == number], same_length)
    if len(case.sizes) == 1:
        _check_end(case, mixture, axes, batches, served)


def _check_kept(case: Case) -> None:
    """Simulated epochs keep whole documents of those that are not held out, with about the share of their tokens."""
    if case.simulate is None:
        return
    for i, part in enumerate(case.parts):
        whole, kept = (Axis.of(part, f"c{i}", simulate) for simulate in (None, case.simulate))
        asked = max(1, len(whole.values) * case.simulate.run_tokens // case.simulate.target_tokens)
        assert abs(len(kept.values) - asked) <= max(part.lengths)
        ends = {int(whole.values[end - 1]) for end in whole.borders[1:]}
        starts = {int(whole.values[start]) for start in whole.starts}
        for start, stop in pairwise(kept.borders):
            document = kept.values[start:stop]
            assert int(document[0]) in starts and int(document[-1]) in ends
            assert np.array_equal(document, np.arange(document[0], document[-1] + 1))


def _at(schedule: Sequence[tuple[int, int]], step: int) -> int:
    return next(value for first, value in reversed(schedule) if first <= step)


def _rows(case: Case, batch: Batch, axes: Sequence[Axis]) -> list[Served]:
    """The rows of a batch, after comparing every array with what the docs say of it."""
    found = []
    length = _at(case.sizes, batch.step)
    assert batch.tokens.shape[1] == length
    for row, component in enumerate(batch.components.tolist()):
        count = int(np.count_nonzero(batch.segments[row]))
        axis = axes[component]
        places = np.searchsorted(axis.values, batch.tokens[row, :count])
        assert np.array_equal(axis.values[places], batch.tokens[row, :count])
        assert (batch.tokens[row, count:] == case.pad).all() and not batch.loss_mask[row, count:].any()
        starts = [i for i, at in enumerate(places.tolist()) if i == 0 or at != places[i - 1] + 1 or at in axis.starts]
        between = {i for i, at in enumerate(places.tolist()) if at in axis.part_starts}  # parts count as documents
        ours = {int(i) for i in np.flatnonzero(np.diff(batch.segments[row, :count], prepend=0))}
        starts = sorted({*starts, *(ours & between)})
        sizes = np.diff([*starts, count])
        assert batch.segments[row].tolist() == [*np.repeat(np.arange(len(starts)) + 1, sizes), *[0] * (length - count)]
        assert batch.positions[row, :count].tolist() == [i for size in sizes for i in range(size)]
        mask = batch.tokens[row, :count] % 3 != 0 if axis.part.masked else np.ones(count, bool)
        assert np.array_equal(batch.loss_mask[row, :count], mask)
        pieces = tuple((int(places[i]), int(places[i]) + int(size)) for i, size in zip(starts, sizes, strict=True))
        found.append(Served(component, length, pieces))
    return found


def _check_slices(case: Case, loader: Loader, batches: Sequence[Batch]) -> None:
    for batch in batches[:: max(1, len(batches) // 3)]:
        rows = len(batch.tokens)
        part = loader.rows(batch.step, rows // 3, rows)
        assert np.array_equal(part.tokens, batch.tokens[rows // 3 :])
        assert np.array_equal(part.components, batch.components[rows // 3 :])
    if all(size % case.hosts == 0 for _, size in case.batches):
        with Loader(loader.mixture, host=case.hosts - 1, hosts=case.hosts) as last:
            rows = len(batches[-1].tokens)
            mine = batches[-1].tokens[rows - rows // case.hosts :]
            assert np.array_equal(last[batches[-1].step].tokens, mine)


def _check_shares(case: Case, used: Sequence[int], served: Sequence[Served]) -> None:
    """After each mixture block of a stage, each component has its exact share, rounded down or up."""
    for (first, weights), (stop, _) in pairwise([*case.stages, (len(served), ())]):
        total, counts = sum(map(Fraction, weights)), Counter[int]()
        for number, at in enumerate(range(first, min(stop, len(served)) - case.block + 1, case.block), 1):
            counts.update(used[row.component] for row in served[at : at + case.block])
            for component, weight in enumerate(weights):
                share = Fraction(weight) / total * case.block * number
                slack = Fraction(case.block * number * len(weights), 1 << 40)
                assert floor(share - slack) <= counts[component] <= ceil(share + slack), (first, number, component)


def _check_sequences(axis: Axis, served: Sequence[Served], same_length: bool) -> None:
    """Epoch after epoch: every token once or, for one length, exactly the rows of the model, window after window.

    A change of length cuts the rest of a window anew, also if it comes and goes between two rows of the component.
    """
    if same_length and served:
        blocks = [block_rows(axis, block, served[0].length) for block in range(len(axis.blocks))]
        size = sum(map(len, blocks))
        for first in range(0, len(served), size):
            _check_epoch(axis, blocks, [row.row for row in served[first : first + size]])
        return
    if axis.part.packing is not None and axis.part.packing.too_long != "split":
        return
    left: Counter[int] = Counter()
    for row in served:
        left = left or Counter(range(len(axis.values)))
        for start, stop in row.row:
            taken = Counter(range(start, stop))
            assert not taken - left, "a token is served twice in an epoch"
            left -= taken


def _check_epoch(axis: Axis, blocks: Sequence[Sequence[Row]], served: Sequence[Row]) -> None:
    """An epoch, or its beginning: the rows of all blocks, in windows. Equally long pieces may have changed places."""
    owner = {piece[0]: number for number, rows in enumerate(blocks) for row in rows for piece in row}
    plain = axis.part.packing is None

    def shape(row: Row) -> tuple[int, Row | tuple[int, ...]]:
        return owner[row[0][0]], row if plain else tuple(sorted(stop - start for start, stop in row))

    rows = [row for block in blocks for row in block]
    expected, found = Counter(map(shape, rows)), Counter(map(shape, served))
    assert not found - expected and (len(served) < len(rows) or found == expected)
    if axis.part.shuffle.kind == "none" and plain:
        assert list(served) == rows[: len(served)]
    window = axis.part.shuffle.window_blocks
    if window is not None and all(blocks):
        seen = [owner[row[0][0]] for row in served]
        rank = {block: place for place, block in enumerate(dict.fromkeys(seen))}
        windows = [rank[block] // window for block in seen]
        assert windows == sorted(windows), "sequences of two windows are mixed"


def _check_end(
    case: Case, mixture: Mixture, axes: Sequence[Axis], batches: Sequence[Batch], served: Sequence[Served]
) -> None:
    """The run ends where the docs say; its batches are those of the endless run, the last one dropped or padded."""
    end = _end(case, axes, served)
    slots = [0, *accumulate(len(batch.tokens) for batch in batches)]
    try:
        loader = Loader(mixture)
    except LoaderError as error:
        if "too far ahead" in str(error):
            assert end is None and _may_end_beyond(case, axes, MOST_BLOCKS)
            return
        # a component loses its weight before its first epoch ends, and no other limit ends the run
        kept = [part for part, weight in zip(case.parts, case.stages[-1][1], strict=True) if weight]
        assert case.stop == "all_exhausted" and len(kept) < len(case.parts)
        assert end is None and all(part.max_epochs is None for part in kept)
        return
    with loader:
        if end is None:
            assert loader.steps is None or loader.steps >= len(batches)
            return
        full = max(step for step, slot in enumerate(slots) if slot <= end)
        padded = case.final == "pad" and slots[full] < end
        assert loader.steps == full + padded
        for step in range(0, full, 5):
            assert np.array_equal(loader[step].tokens, batches[step].tokens)
        if padded:
            last, rows = loader[full], end - slots[full]
            assert np.array_equal(last.tokens[:rows], batches[full].tokens[:rows])
            assert (last.tokens[rows:] == case.pad).all() and (last.components[rows:] == -1).all()
            assert not last.segments[rows:].any() and not last.loss_mask[rows:].any()


def _may_end_beyond(case: Case, axes: Sequence[Axis], blocks: int) -> bool:
    """Some component takes more mixture blocks than this to complete the epochs that may end the run."""
    for axis in axes:
        shares = [weights[axis.number] / sum(weights) for _, weights in case.stages]
        epochs = max(axis.part.max_epochs or 0, int(case.stop != "restart"))
        slots = (epochs * _epoch(case, axis) + 1) / min(share for share in shares if share)
        if epochs and slots > blocks * case.block:
            return True
    return False


def _epoch(case: Case, axis: Axis) -> int:
    return sum(len(block_rows(axis, block, case.sizes[0][1])) for block in range(len(axis.blocks)))


def _end(case: Case, axes: Sequence[Axis], served: Sequence[Served]) -> int | None:
    """The first slot after the run, if it ends among the slots that were served."""
    epochs = [_epoch(case, axis) for axis in axes]
    counts, done, ends = [0] * len(axes), set[int](), []
    for slot, row in enumerate(served):
        number = row.component
        limits = [axes[number].part.max_epochs, 1 if case.stop == "first_exhausted" else None]
        if any(limit is not None and counts[number] == limit * epochs[number] for limit in limits):
            ends.append(slot)
            break
        counts[number] += 1
        done |= {number} if counts[number] >= epochs[number] else set()
        if case.stop == "all_exhausted" and len(done) == len(axes):
            ends.append(slot + 1)
            break
    return min(ends, default=None)


PACKINGS = st.builds(Packing, st.sampled_from(["split", "truncate", "drop"]), st.sampled_from([0, 0, 1, 2, 3]))
BLOCKS = st.integers(20, 130)
SHUFFLES = st.one_of(
    st.builds(Shuffle, st.just("block"), BLOCKS, st.none() | st.integers(1, 4)),
    st.builds(Shuffle, st.sampled_from(["full", "none"]), BLOCKS),
)
PARTS = st.builds(
    Part,
    lengths=st.lists(st.integers(0, 30) | st.integers(0, 200), min_size=1, max_size=25).filter(any).map(tuple),
    masked=st.booleans(),
    packing=st.none() | PACKINGS,
    shuffle=SHUFFLES,
    validation=st.sampled_from([0, 0, 0, 5, 40]),
    max_epochs=st.sampled_from([None, None, 1, 2, 3]),
)
SHARES = ((1, 2), (1, 10), (9, 10), (5, 5), (1, 1000))
SIMULATED = st.sampled_from([None] * len(SHARES) + [SimulatedEpochs(*share) for share in SHARES])
WEIGHTS = st.sampled_from([0.0, 1.0, 1.0, 2.0, 0.1, 1 / 3, 7.5, 1e-3])


@st.composite
def _schedules(draw: st.DrawFn, values: st.SearchStrategy[int], most: int) -> tuple[tuple[int, int], ...]:
    steps = [0, *sorted(draw(st.sets(st.integers(1, 30), max_size=most)))]
    return tuple((step, draw(values)) for step in steps)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    parts = draw(st.lists(PARTS, min_size=1, max_size=3))
    weights = st.lists(WEIGHTS, min_size=len(parts), max_size=len(parts)).filter(any).map(tuple)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 200), max_size=2)))]
    hosts = draw(st.integers(1, 3))
    return Case(
        tuple(parts),
        tuple((start, draw(weights)) for start in starts),
        draw(_schedules(st.integers(1, 20), draw(st.sampled_from([0, 0, 2])))),
        draw(_schedules(st.integers(1, 4).map(lambda rows: rows * hosts), 2)),
        draw(st.integers(1, 40)),
        draw(st.sampled_from(["restart", "first_exhausted", "all_exhausted"])),
        draw(st.sampled_from(["drop", "pad"])),
        draw(st.sampled_from([0, 999_999])),
        draw(st.integers(0, 2**40)),
        hosts,
        draw(SIMULATED),
    )


CASES = _cases()
