"""What each component contributes over the run, as numbers for a plot: pure, and nothing is read.

view = contributions(SequenceOrder(mixture), steps=20_000)
view.tokens[-1]     # token slots of each component at the end, view.names says which is which
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datakit.errors import LoaderError
from datakit.loader.mixture.sequence_order import SequenceOrder


@dataclass(frozen=True)
class Preview:
    """At `steps` (ascending, from 0), by component: token slots so far, epochs so far, the share since the step before.

    `share` has one row less than `steps`. `changes` names what changes at which step. Slots are counted, as the
    mixture's weights do: the few that are padding are among them.
    """

    names: list[str]
    steps: np.ndarray
    tokens: np.ndarray  # int64 [points, components]
    epochs: np.ndarray  # float [points, components]
    share: np.ndarray  # float [points - 1, components]
    changes: list[tuple[int, str]]
    ending: str


def contributions(order: SequenceOrder, steps: int | None = None, points: int = 200) -> Preview:
    """The first `steps` batches (all of them if None), at up to `points` steps and wherever something changes."""
    steps = order.steps if steps is None else steps if order.steps is None else min(steps, order.steps)
    if steps is None:
        raise LoaderError("this mixture never ends; say how many steps to look at")
    if steps < 1:
        raise LoaderError("there is no batch to look at")
    changes = [change for change in changes_of(order) if change[0] < steps]
    marks = np.linspace(0, steps, min(points, steps + 1)).astype(np.int64)
    marks = np.union1d(marks, [step for step, _ in changes])
    tokens = np.array([tokens_before(order, int(step)) for step in marks])
    epochs = [
        [stream.epochs_at(n) for stream, n in zip(order.streams, order.served_before(int(s)), strict=True)]
        for s in marks
    ]
    gained = np.diff(tokens, axis=0)
    share = gained / np.maximum(1, gained.sum(axis=1, keepdims=True))
    return Preview(order.names, marks, tokens, np.array(epochs), share, changes, order.ending)


def tokens_before(order: SequenceOrder, step: int) -> np.ndarray:
    """Token slots of each component in the batches before `step`."""
    total, before = np.zeros(len(order.names), np.int64), np.zeros(len(order.names), np.int64)
    changes = [(at, length) for at, length in order.lengths.changes() if at < step]
    ends = [at for at, _ in changes[1:]] + [step]
    for end, (_, length) in zip(ends, changes, strict=False):
        served = np.array(order.served_before(end))
        total, before = total + (served - before) * length, served
    return total


def changes_of(order: SequenceOrder) -> list[tuple[int, str]]:
    """(step, what): the stages, lengths and batch sizes after the first ones."""
    named = [
        (order.axis.step_of(slot), f"stage {i + 1}: {_weights(weights)}")
        for i, (slot, weights) in enumerate(order.stages)
    ]
    lengths = [(step, f"sequence length {length:,}") for step, length in order.lengths.changes()]
    batches = [(step, f"batch size {size:,}") for step, size in order.mixture.batches.changes()]
    return sorted(named[1:] + lengths[1:] + batches[1:])


def _weights(weights: dict[str, float]) -> str:
    total = sum(weights.values())
    return ", ".join(f"{name} {weight / total:.3g}" for name, weight in sorted(weights.items()) if weight > 0)
