"""Places a loader's batches on the devices ahead of the training loop, rejects unknown token ids and uneven batches,
and finds the current stage of the mixture. While the devices compute a step, a thread fetches the next batches from a
`BatchSource`, such as `datakit.loader.Loader`, and places each row on its device.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.loader.reading.digest import batch_digest
from datakit.loader.reading.prefetch import in_background
from datakit.trainer.models.protocol import PADDING_SEGMENT, Tokens
from datakit.trainer.models.weights import BATCH, TENSOR, batch_parts

AHEAD = 2  # number of batches kept ready on the devices: one for the next step, and one to bridge a slow read


class HostBatch(Protocol):
    """This host's rows of a batch as numpy arrays [rows, length]. `protocol.Tokens` explains the fields."""

    @property
    def tokens(self) -> Any: ...

    @property
    def segments(self) -> Any: ...

    @property
    def loss_mask(self) -> Any: ...


class BatchSource(Protocol):
    """A source of training batches; each batch is a pure function of its step."""

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Any, None, None]:
        """Yield the batches `start` to `stop - 1`."""
        ...

    def outline(self, steps: int) -> list[tuple[int, int, int]]:
        """Return a list of (number of batches, rows, length) for the first `steps` batches; each tuple describes
        consecutive batches of one shape. Raises an error if there are fewer batches.
        """
        ...

    def record(self) -> dict[str, Any]:
        """Return a description of the mixture, to be stored in checkpoints; it has a key "fingerprint"."""
        ...

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        """Return the changes since the record `saved`. Raises an error if the batches before `step` would differ."""
        ...

    def snapshot(self, step: int) -> Mapping[str, float]:
        """Return the source's own metrics after `step` steps; they are logged under data/."""
        ...


class Placed(NamedTuple):
    """A batch on the devices, and its size summed over all hosts. rows, digest: the number of this host's rows, and the
    digest of these rows.
    """

    batch: Tokens
    sequences: int
    tokens: int  # excluding padding, whose share is assumed to be the same on every host
    rows: int
    digest: str


class Feed(AbstractContextManager["Feed"]):
    """A context manager that places the batches `start` to `stop - 1` on the devices before they are needed."""

    def __init__(self, source: BatchSource, mesh: Mesh, vocabulary: int, start: int, stop: int) -> None:
        self.waited: float = 0.0  # seconds that the last call of `next` waited for a batch; should be near zero
        self._placed = in_background(_placed(source, mesh, vocabulary, start, stop), AHEAD)

    def next(self) -> Placed | None:
        """Return the next batch, or None after the last one. Raises the errors of the source."""
        started = time.perf_counter()
        placed = next(self._placed, None)
        self.waited = time.perf_counter() - started
        return placed

    def __exit__(self, *_: object) -> None:
        self._placed.close()


def _placed(source: BatchSource, mesh: Mesh, vocabulary: int, start: int, stop: int) -> Iterator[Placed]:
    with closing(source.iterate(start, stop)) as batches:
        for batch in batches:
            yield place(batch, mesh, vocabulary)


def place(batch: HostBatch, mesh: Mesh, vocabulary: int) -> Placed:
    """Place a batch on the devices, split by rows. Raises UsageError for an uneven split or an unknown id."""
    _check_ids(batch.tokens, vocabulary)
    rows, length = batch.tokens.shape
    sequences = rows * jax.process_count()
    tensor, parts = mesh.shape[TENSOR], batch_parts(mesh)
    if sequences % parts:
        raise UsageError(
            f"a batch of {sequences} sequences cannot be split evenly over {parts} devices; use a multiple of {parts}"
        )
    if length % tensor:
        raise UsageError(
            f"sequences of {length} tokens cannot be split evenly over tensor_parallel = {tensor} devices; use a "
            f"multiple of {tensor}"
        )
    sharding = NamedSharding(mesh, P(BATCH))
    arrays = (batch.tokens.astype(np.int32), batch.segments.astype(np.int32), batch.loss_mask.astype(np.bool_))
    placed = Tokens(*(jax.make_array_from_process_local_data(sharding, array) for array in arrays))
    share = np.count_nonzero(batch.segments != PADDING_SEGMENT) / (rows * length)
    return Placed(placed, sequences, round(share * sequences * length), rows, batch_digest(batch))


def _check_ids(tokens: Any, vocabulary: int) -> None:
    """Raise UsageError for ids outside the vocabulary; a device would silently use the embedding of another id."""
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= vocabulary:
        wrong = least if least < 0 else most
        raise UsageError(
            f"a batch holds the id {wrong}, but the model's vocabulary has {vocabulary} ids; "
            "set model.vocabulary to the vocabulary size of the data's tokenizer"
        )


def stage_at(mixture: Mapping[str, Any], sequences: int) -> tuple[int, dict[str, float]] | None:
    """Return (index, weights) of the stage in use after `sequences` sequences, or None if no stage has started."""
    stages: Iterable[Any] = mixture.get("stages") or ()
    started = [(number, weights) for number, (slot, weights) in enumerate(stages) if slot <= sequences]
    return (started[-1][0], dict(started[-1][1])) if started else None
