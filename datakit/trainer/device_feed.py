"""Batches on their way from a loader to the devices.

A source is anything with the methods of `BatchSource`; `datakit.loader.Loader` is one. `Feed` works in a thread of its
own: while the devices compute a step, the next batches are fetched and placed, each device holding its rows. What the
loop waits for is counted: `waited` should stay near zero.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.loader.reading.prefetch import in_background
from datakit.trainer.models.protocol import PADDING_SEGMENT, Tokens
from datakit.trainer.models.weights import BATCH

AHEAD = 2  # batches that wait on the devices


class HostBatch(Protocol):
    """This host's rows of a batch, as numpy arrays. Segments count from 1, 0 is padding; see `interface.Tokens`."""

    @property
    def tokens(self) -> Any: ...

    @property
    def segments(self) -> Any: ...

    @property
    def loss_mask(self) -> Any: ...


class BatchSource(Protocol):
    """Where training batches come from: a pure function of the step."""

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Any, None, None]:
        """The batches `start`..`stop - 1`."""
        ...

    def outline(self, steps: int) -> list[tuple[int, int, int]]:
        """The first `steps` batches in order: (how many, sequences in each, length). Raises where there are fewer."""
        ...

    def record(self) -> dict[str, Any]:
        """What the batches are made of, with a "fingerprint"; kept in checkpoints."""
        ...

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        """Raises if the batches before `step` were not those of `saved`; returns what differs from there on."""
        ...

    def snapshot(self, step: int) -> Mapping[str, float]:
        """Figures of the reading, for the metrics."""
        ...


class Placed(NamedTuple):
    """A batch on the devices, and its size over all hosts."""

    batch: Tokens
    sequences: int
    tokens: int  # that are no padding; other hosts are taken to have as many as this one


class Feed:
    """The batches from `start` on, placed ahead. Use it in a `with` statement."""

    def __init__(self, source: BatchSource, mesh: Mesh, vocabulary: int, start: int, stop: int) -> None:
        self.waited = 0.0  # seconds, of the last `next`
        self._placed = in_background(_placed(source, mesh, vocabulary, start, stop), AHEAD)

    def next(self) -> Placed | None:
        """The next batch; None after the last one. Raises what the source raised."""
        begun = time.perf_counter()
        placed = next(self._placed, None)
        self.waited = time.perf_counter() - begun
        return placed

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._placed.close()


def _placed(source: BatchSource, mesh: Mesh, vocabulary: int, start: int, stop: int) -> Iterator[Placed]:
    batches = source.iterate(start, stop)
    try:
        for batch in batches:
            yield place(batch, mesh, vocabulary)
    finally:
        batches.close()


def place(batch: HostBatch, mesh: Mesh, vocabulary: int) -> Placed:
    """A batch split by rows over the devices. Raises UsageError where it does not come out even, or for unknown ids."""
    _check_ids(batch.tokens, vocabulary)
    rows, length = batch.tokens.shape
    sequences = rows * jax.process_count()
    if sequences % mesh.size:
        raise UsageError(f"a batch of {sequences} sequences does not split over {mesh.size} devices; choose a multiple")
    sharding = NamedSharding(mesh, P(BATCH))
    arrays = (batch.tokens.astype(np.int32), batch.segments.astype(np.int32), batch.loss_mask.astype(np.bool_))
    placed = Tokens(*(jax.make_array_from_process_local_data(sharding, array) for array in arrays))
    share = np.count_nonzero(batch.segments != PADDING_SEGMENT) / (rows * length)
    return Placed(placed, sequences, round(share * sequences * length))


def _check_ids(tokens: Any, vocabulary: int) -> None:
    """On a device an id that is too large reads the last row of the embedding, and nothing tells."""
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= vocabulary:
        wrong = least if least < 0 else most
        raise UsageError(
            f"a batch holds the id {wrong}, but the model's vocabulary has {vocabulary} ids; "
            "give model.vocabulary the size of the data's tokenizer"
        )


def stage_at(record: Mapping[str, Any], sequences: int) -> tuple[int, dict[str, float]] | None:
    """The number and the weights of a mixture's stage after so many sequences; None where the record has no stages."""
    stages: Iterable[Any] = record.get("stages") or ()
    begun = [(number, weights) for number, (slot, weights) in enumerate(stages) if slot <= sequences]
    return (begun[-1][0], dict(begun[-1][1])) if begun else None
