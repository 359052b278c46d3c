"""Computes the embedding and the loss when the vocabulary is split over the mesh axis "tensor".

Each device holds the rows of the embedding and the columns of the output matrix for its part of the ids. Positions are
split over the same axis outside these functions. Inside, each device gathers all positions of its sequences, does the
work for its own ids, and the results are summed over the axis: for the embedding, all terms but one are zero; for the
loss, only the sums of exponentials and the label's logit are exchanged, not the logits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.collectives import gather, scatter_sum
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import BATCH, TENSOR, constrain

POSITIONS = P(BATCH, TENSOR)  # how positions are split where the work of a position is not split


def split_embed(table: Float[Array, "V D"], tokens: Int[Array, "B S"], dtype: Any) -> Float[Array, "B S D"]:
    """Compute what `layers.embed` returns."""

    def own(rows: Any, tokens: Any) -> Any:
        at = jax.lax.all_gather(tokens, TENSOR, axis=1, tiled=True) - jax.lax.axis_index(TENSOR) * rows.shape[0]
        here = ((at >= 0) & (at < rows.shape[0]))[..., None]
        found = jnp.where(here, rows[jnp.clip(at, 0, rows.shape[0] - 1)], 0.0)
        return scatter_sum(found, TENSOR, 1, jnp.float32)

    rows = constrain(table.astype(jnp.float32), P(TENSOR))
    embed = jax.shard_map(own, in_specs=(P(TENSOR), POSITIONS), out_specs=POSITIONS, check_vma=False)
    return constrain(embed(rows, tokens).astype(dtype), P(BATCH))


def split_cross_entropy(
    hidden: Float[Array, "B S D"], head: Float[Array, "D V"], labels: Int[Array, "B S"], pieces_of: Any
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Return -log p(label) and the logsumexp of the logits at each position. `pieces_of` returns the number of
    positions in a piece, given the shape of a device's logits [B, S, V].
    """

    def own(hidden: Any, head: Any, labels: Any) -> tuple[Any, Any]:
        hidden = gather(hidden, TENSOR, 1)
        labels = jax.lax.all_gather(labels, TENSOR, axis=1, tiled=True)
        labels = labels - jax.lax.axis_index(TENSOR) * head.shape[1]
        batch, length, width = hidden.shape
        piece = pieces_of(batch, length, head.shape[1])
        cut = (batch, length // piece, piece)
        parts = hidden.reshape(*cut, width).swapaxes(0, 1), labels.reshape(cut).swapaxes(0, 1)
        # In fp32, so that the gradients of the pieces are added in fp32.
        wide = head.astype(jnp.float32)
        one = jax.checkpoint(lambda part: _losses(part[0], wide.astype(head.dtype), part[1]))
        losses = jax.lax.map(one, parts)
        return tuple(_own_positions(part.swapaxes(0, 1).reshape(batch, length)) for part in losses)  # type: ignore[return-value]

    specs = (POSITIONS, P(None, TENSOR), POSITIONS)
    compute = jax.shard_map(own, in_specs=specs, out_specs=(POSITIONS, POSITIONS), check_vma=False)
    losses, normalizer = compute(hidden, head, labels)
    return constrain(losses, P(BATCH)), constrain(normalizer, P(BATCH))


def _losses(x: Float[Array, "B s D"], head: Float[Array, "D v"], labels: Int[Array, "B s"]) -> tuple[Any, Any]:
    """Return loss and logsumexp of each position. `labels` count this device's ids from 0; others are out of range."""
    logits = jnp.einsum("bsd,dv->bsv", x, head, preferred_element_type=jnp.float32)
    top = jax.lax.pmax(jax.lax.stop_gradient(jnp.max(logits, axis=-1)), TENSOR)
    chosen = jnp.where(jnp.arange(logits.shape[-1]) == labels[..., None], logits, 0.0)
    sums = jnp.sum(jnp.exp(logits - top[..., None]), axis=-1), jnp.sum(chosen, axis=-1)
    total, picked = jax.lax.psum(sums, TENSOR)
    normalizer = top + jnp.log(total)
    return normalizer - picked, normalizer


def _own_positions(values: Float[Array, "B S"]) -> Float[Array, "B s"]:
    size = values.shape[1] // jax.lax.axis_size(TENSOR)
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(TENSOR) * size, size, 1)
