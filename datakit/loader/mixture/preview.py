"""Computes how many tokens and epochs each component contributes to a run, and its share of the tokens. Lists all
changes of stage, sequence length and batch size, and all excluded documents.

    view = contributions(SequenceOrder(mixture), steps=20_000)
    view.tokens[-1]     # number of tokens of each component at the end, in the order of view.names

No tokens are read. Excluded documents are looked up by their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datakit.errors import LoaderError, counted
from datakit.loader.mixture.sequence_order import SequenceOrder
from datakit.loader.sources.exclusions import describe_exclusions


@dataclass(frozen=True)
class Excluded:
    """The documents that are excluded from batch `start_step` on. tokens: the number of their tokens by component."""

    start_step: int
    documents: list[str]
    tokens: dict[str, int]

    def text(self) -> str:
        """Return a description, such as "the loss leaves out 2 documents from here on (1,234 tokens of web)"."""
        tokens = ", ".join(f"{counted(number, 'token')} of {name}" for name, number in sorted(self.tokens.items()))
        return f"the loss leaves out {counted(len(self.documents), 'document')} from here on ({tokens})"


@dataclass(frozen=True)
class Preview:
    """The components' contributions up to each of `steps`, which ascend from 0. Numbers of tokens include padding."""

    names: list[str]
    steps: np.ndarray
    tokens: np.ndarray  # cumulative: int64 [len(steps), components]
    epochs: np.ndarray  # cumulative: float [len(steps), components]
    share: np.ndarray  # share of the tokens between consecutive entries of `steps`: float [len(steps) - 1, components]
    changes: list[tuple[int, str]]  # (step, description)
    ending: str
    excluded: Sequence[Excluded] = ()


def contributions(order: SequenceOrder, steps: int | None = None, points: int = 200, apart: bool = False) -> Preview:
    """Return the contributions over the first `steps` batches, or over the whole run if `steps` is None. They are
    computed at up to `points` evenly spaced steps, and at each step where a setting changes. apart: if True, leave out
    the evenly spaced steps close to a change, because a share computed from very few sequences means little. Raises
    LoaderError if there is no batch, or if the mixture is endless and `steps` is None.
    """
    steps = order.steps if steps is None else steps if order.steps is None else min(steps, order.steps)
    if steps is None:
        raise LoaderError("this mixture never ends; set `steps` to the number of steps to preview")
    if steps < 1:
        raise LoaderError("there is no batch to preview; the number of steps must be at least 1")
    changes = [change for change in changes_of(order) if change[0] < steps]
    marks = _marks(steps, min(points, steps + 1), [step for step, _ in changes], apart)
    tokens = np.array([tokens_before(order, int(step)) for step in marks])
    epochs = [
        [stream.epochs_at(n) for stream, n in zip(order.streams, order.served_before(int(s)), strict=True)]
        for s in marks
    ]
    gained = np.diff(tokens, axis=0)
    share = gained / np.maximum(1, gained.sum(axis=1, keepdims=True))
    return Preview(order.names, marks, tokens, np.array(epochs), share, changes, order.ending, excluded_by(order))


def _marks(steps: int, points: int, changes: list[int], apart: bool) -> np.ndarray:
    """Return `points` evenly spaced steps and the steps of all changes. apart: if True, leave out the evenly spaced
    steps (other than 0 and the last) whose distance to a change is less than half the spacing.
    """
    even = np.linspace(0, steps, points).astype(np.int64)
    if apart and changes:
        near = np.abs(even[:, None] - np.array(changes)).min(axis=1) < steps / (2 * max(1, points - 1))
        near[[0, -1]] = False
        even = even[~near]
    return np.union1d(even, changes)


def tokens_before(order: SequenceOrder, step: int) -> np.ndarray:
    """Return each component's number of tokens, padding included, in the batches before `step`: int64 [components]."""
    total, before = np.zeros(len(order.names), np.int64), np.zeros(len(order.names), np.int64)
    changes = [(at, length) for at, length in order.lengths.changes() if at < step]
    ends = [at for at, _ in changes[1:]] + [step]
    for end, (_, length) in zip(ends, changes, strict=False):
        served = np.array(order.served_before(end))
        total, before = total + (served - before) * length, served
    return total


def changes_of(order: SequenceOrder) -> list[tuple[int, str]]:
    """Return (step, description) for every change of stage, length or batch size."""
    named = [
        (order.axis.step_of(slot), f"stage {i + 1}: {_weights(weights)}")
        for i, (slot, weights) in enumerate(order.stages)
    ]
    lengths = [(step, f"sequence length {length:,}") for step, length in order.lengths.changes()]
    batches = [(step, f"batch size {size:,}") for step, size in order.mixture.batches.changes()]
    return sorted(named[1:] + lengths[1:] + batches[1:])


def excluded_by(order: SequenceOrder) -> list[Excluded]:
    """Return the excluded documents by the step from which on they are excluded, in ascending order."""
    found = []
    for step, documents in describe_exclusions(order.mixture.exclusions):
        sizes = {name: int((one.stops - one.starts)[one.steps == step].sum()) for name, one in order.excluded.items()}
        found.append(Excluded(step, documents, {name: size for name, size in sizes.items() if size}))
    return found


def _weights(weights: dict[str, float]) -> str:
    total = sum(weights.values())
    return ", ".join(f"{name} {weight / total:.3g}" for name, weight in sorted(weights.items()) if weight > 0)
