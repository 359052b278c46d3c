"""Computes the loss and bits per byte of validation sets, and rejects sets with nothing to predict.

    metrics = evaluate(trainer, params, model_state, {"web": batches, "code/python": batches}, token_bytes)

A tag is the name of a validation set (`totals.py`). Sums are computed in float64 on the host, in the order of the
batches, so the number of devices and the batch size affect the result only through the rounding of the individual
losses. The experts drop no tokens, even if training does. A batch from a single domain overloads a few experts; with a
limited capacity, the loss would be about 0.1 nat higher. `evaluation.capacity_factors` measures this. docs/metrics.md
lists the metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import jax
import numpy as np

from datakit.errors import UsageError
from datakit.trainer.device_feed import HostBatch, place
from datakit.trainer.evaluation.totals import AVERAGED, CAPACITY, LENGTH, Lengths, Totals, count, summary
from datakit.trainer.models.experts.capacity import capacity_name, check_blocks
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import any_says
from datakit.trainer.step import Trainer

BatchesOf = Callable[[], Iterable[HostBatch]]
Tags = Mapping[str, BatchesOf]
EvaluationsAt = Callable[[int], Tags]  # number of steps done -> the validation sets by tag
OtherLengthsAt = Callable[[int], Mapping[int, Tags]]  # the same by length, for the lengths of the other stages
NO_LENGTHS: Mapping[int, Tags] = MappingProxyType({})


def evaluate(
    trainer: Trainer,
    params: Tree,
    model_state: Tree,
    tags: Tags,
    token_bytes: Lengths = None,
    limit: int | None = None,
    capacity: float | None = None,
) -> dict[str, float]:
    """Return all metrics, from at most `limit` batches per tag. capacity: a capacity factor; None: nothing is dropped.
    Raises UsageError for a tag with nothing to predict.
    """
    started, totals, waits = time.perf_counter(), {}, [0.0]
    with jax.set_mesh(trainer.mesh):
        for tag, batches in tags.items():
            timed = _timed(islice(iter(batches()), limit), waits)
            totals[tag] = measure(trainer, params, model_state, timed, token_bytes, capacity)
            if not totals[tag].tokens:
                raise UsageError(f"evaluation {tag!r} has no token to predict")
    return summary(totals) | {"eval/total_time": time.perf_counter() - started, "eval/loading_time": sum(waits)}


def _timed(batches: Iterator[HostBatch], waits: list[float]) -> Iterator[HostBatch]:
    """Yield the batches, and append to `waits` how many seconds each one took to arrive."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        waits.append(time.perf_counter() - started)
        if batch is None:
            return
        yield batch


def evaluate_all(
    trainer: Trainer,
    state: Tree,
    tags: Tags,
    token_bytes: Lengths = None,
    limit: int | None = None,
    other_lengths: Mapping[int, Tags] = NO_LENGTHS,
    capacities: Iterable[float] = (),
) -> dict[str, float]:
    """Return the metrics of a state's weights and, under eval/ema/, those of its averaged weights if it has any. The
    metrics of the validation sets in `other_lengths`, by sequence length, are under eval/length_<L>/, and those with
    each of the capacity factors `capacities` under eval/capacity_<factor>/.
    """
    ways: list[tuple[str, Tags, float | None]] = [("", tags, None)]
    ways += [(f"{LENGTH}{length}/", sets, None) for length, sets in other_lengths.items()]
    ways += [(f"{CAPACITY}{capacity_name(factor)}/", tags, factor) for factor in capacities]
    metrics: dict[str, float] = {}
    for which, weights in {"": state, **({f"{AVERAGED}/": state["ema"]} if "ema" in state else {})}.items():
        for prefix, sets, factor in ways:
            found = evaluate(trainer, weights["params"], weights["model"], sets, token_bytes, limit, factor)
            metrics |= {name.replace("eval/", f"eval/{which}{prefix}", 1): value for name, value in found.items()}
    return metrics


def measure(
    trainer: Trainer,
    params: Tree,
    model_state: Tree,
    batches: Iterable[HostBatch],
    token_bytes: Lengths,
    capacity: float | None = None,
) -> Totals:
    """Return the sums over the predicted tokens in the batches of one tag. capacity: see `evaluate`."""
    totals = Totals()
    for batch in batches:
        placed = place(batch, trainer.mesh, trainer.config.vocabulary).batch
        losses, weights, tokens = trainer.evaluate(params, model_state, placed, capacity=capacity)
        totals += count(np.asarray(losses), np.asarray(weights), np.asarray(tokens), token_bytes)
    return totals


def check_evaluations(tags: Tags, limit: int | None) -> None:
    """Raise UsageError for a tag with nothing to predict. Usually, only the first batch of each tag is read."""
    for tag, batches in tags.items():
        if not any(any_says(_has_prediction(batch))[0] for batch in islice(iter(batches()), limit)):
            raise UsageError(f"evaluation {tag!r} has no token to predict; give it more documents, or remove it")


def check_capacities(trainer: Trainer, tags: Tags, factors: Sequence[float]) -> None:
    """Raise UsageError if a tag cannot be evaluated with these capacity factors. Reads the first batch of each tag."""
    for batches in tags.values() if factors else ():
        for batch in islice(iter(batches()), 1):
            rows, length = batch.tokens.shape
            check_blocks(trainer.config, factors, rows * jax.process_count(), length, trainer.mesh.size)


def _has_prediction(batch: HostBatch) -> bool:
    """Return True if this host's rows have a token to predict, according to the rule in `layers.next_tokens`."""
    counted = batch.loss_mask[:, 1:] & (batch.segments[:, 1:] == batch.segments[:, :-1])
    return bool(counted.any())
