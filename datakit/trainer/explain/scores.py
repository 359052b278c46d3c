"""Measures each document of a batch: the losses of its predicted tokens, and the norm of the gradient of their sum.

The losses come from one forward pass over the whole batch. A gradient needs a forward and a backward pass per document,
over only the rows that hold the document, so its cost is that of about (documents / rows) training steps, and its
memory that of one row. The documents of a row do not see one another, and a document's loss does not depend on other
rows, so the gradient is that of the document alone. For this, no assignments are dropped, even if training drops some
(`capacity.py`). The step's gradient, before the auxiliary losses, is the sum of all
documents' gradients divided by the number of predicted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.loader import Batch
from datakit.trainer.explain.batch_documents import BatchDocument
from datakit.trainer.explain.replay import Report
from datakit.trainer.models.experts.capacity import with_capacity
from datakit.trainer.models.protocol import PADDING_SEGMENT, Tokens
from datakit.trainer.models.shapes import Array, Bool, Float
from datakit.trainer.models.weights import BATCH, Tree, batch_parts
from datakit.trainer.step import Trainer

LOSS, GRADIENT = "loss", "gradient"  # what documents are ranked by


@dataclass(frozen=True)
class Score:
    """predicted: number of the document's tokens that count toward the loss. loss: their mean loss in nats; None if
    there are none. excess: by how much their losses exceed that many times the batch's mean loss, in nats.
    gradient_norm: L2 norm of the gradient of the sum of the losses; None if not computed. A number may be NaN.
    """

    predicted: int
    loss: float | None
    excess: float
    gradient_norm: float | None


def losses_of(trainer: Trainer, state: Tree, batch: Batch, documents: Sequence[BatchDocument]) -> list[Score]:
    """Return each document's score without gradient norms."""
    losses, weights, _ = trainer.evaluate(state["params"], state["model"], _placed(trainer, batch))
    losses, weights = np.asarray(losses, np.float64), np.asarray(weights, np.float64)
    mean = float(np.sum(losses * weights) / max(np.sum(weights), 1))
    return [_loss_score(losses * weights, weights, document, mean) for document in documents]


def _loss_score(losses: np.ndarray, weights: np.ndarray, document: BatchDocument, mean: float) -> Score:
    places = [(part.row, slice(part.start, part.stop)) for part in document.parts]
    total = float(sum(losses[place].sum() for place in places))
    predicted = int(sum(weights[place].sum() for place in places))
    return Score(predicted, total / predicted if predicted else None, total - predicted * mean, None)


def gradient_norms(
    trainer: Trainer, state: Tree, batch: Batch, documents: Sequence[BatchDocument], report: Report
) -> list[float]:
    """Return the norm of the gradient of each document's summed loss."""
    norm, found = _norm_with(trainer), list[float]()
    for number, document in enumerate(documents):
        report(number, len(documents), "documents' gradients")
        found.append(float(norm(state["params"], state["model"], *_rows_of(trainer, batch, document))))
    return found


@lru_cache(1)
def _norm_with(trainer: Trainer) -> Callable[..., Array]:
    """Return the jitted `_gradient_norm`, compiled once per trainer and shape."""
    return jax.jit(partial(_gradient_norm, trainer))


def _gradient_norm(
    trainer: Trainer, params: Tree, model_state: Tree, rows: Tokens, chosen: Bool[Array, "B S"]
) -> Float[Array, ""]:
    def total(params: Tree) -> Float[Array, ""]:
        output = trainer.model.apply(params, model_state, rows, with_capacity(trainer.config, None))
        return jnp.sum(jnp.where(chosen, output.losses * output.weights, 0.0))

    squares = (jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(jax.grad(total)(params)))
    return jnp.sqrt(sum(squares, jnp.float32(0)))


def _placed(trainer: Trainer, batch: Batch) -> Tokens:
    return _tokens(trainer, batch.tokens, batch.segments, batch.loss_mask)


def _rows_of(trainer: Trainer, batch: Batch, document: BatchDocument) -> tuple[Tokens, Any]:
    """Return the rows of a document, and where its tokens are in them. On a mesh, rows of padding are added, so that
    the rows can be split over the devices.
    """
    rows, length = document.rows, batch.shape[1]
    more = -len(rows) % batch_parts(trainer.mesh)
    take: Callable[[Any], np.ndarray] = lambda array: np.pad(array[rows], ((0, more), (0, 0)))  # noqa: E731
    assert PADDING_SEGMENT == 0, "np.pad fills segments with zeros"
    chosen = take(document.mask(*batch.shape))
    assert chosen.shape == (len(rows) + more, length)
    tokens = _tokens(trainer, take(batch.tokens), take(batch.segments), take(batch.loss_mask))
    return tokens, jax.device_put(chosen, NamedSharding(trainer.mesh, P(BATCH)))


def _tokens(trainer: Trainer, tokens: Any, segments: Any, loss_mask: Any) -> Tokens:
    arrays = tokens.astype(np.int32), segments.astype(np.int32), loss_mask.astype(np.bool_)
    return Tokens(*(jax.device_put(array, NamedSharding(trainer.mesh, P(BATCH))) for array in arrays))


def ranking(scores: Sequence[Score], by: str) -> list[int]:
    """Return the indices of the scores, the most conspicuous first: NaN and infinite ones, then in descending order of
    excess (`by` is "loss") or of gradient norm ("gradient").

    Excess is the better sign of a strange document. In a model that still learns fast, the gradients of ordinary
    documents point in one direction, so their norms grow with the length and exceed that of a strange one.
    """

    def key(index: int) -> tuple[bool, float]:
        score = scores[index]
        norm = score.gradient_norm or 0.0
        sound = math.isfinite(norm) and math.isfinite(score.excess)
        return sound, -(norm if by == GRADIENT else score.excess) if sound else 0.0

    return sorted(range(len(scores)), key=key)
