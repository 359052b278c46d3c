"""Keeps the keys and values of earlier positions, so that a generated token costs one position and not the whole row.

    y[s] = sum over t of softmax over t (query[s] . key[t] / sqrt(H)) * value[t]
    where s runs over the new positions place ... place + S - 1, and t over all positions from the window's start to s

All scores of the new positions are computed at once, [S, T] for each head: few, because S is 1 except for the prompt.
There is one document in a row. Positions after the new ones may hold anything: they are not seen, and are overwritten
before they would be. The gradient is never needed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from datakit.trainer.models.attention.blocked import MASKED
from datakit.trainer.models.layers import rotary_table
from datakit.trainer.models.protocol import PADDING_SEGMENT
from datakit.trainer.models.shapes import Array, Float, Int


class Past(NamedTuple):
    """The keys and values of a row of T positions, and the number of positions that are known. Stacked by layer, each
    array has one more axis at its front.
    """

    keys: Float[Array, "B T M H"]
    values: Float[Array, "B T M H"]
    place: Int[Array, ""]


def empty_past(layers: int, positions: int, kv_heads: int, head_width: int, dtype: str) -> Past:
    """Return the past of `layers` layers before the first position, for one row of this many positions."""
    rows = jnp.zeros((layers, 1, positions, kv_heads, head_width), dtype)
    return Past(rows, rows, jnp.zeros(layers, jnp.int32))


def with_past(
    query: Float[Array, "B S N H"],
    key: Float[Array, "B S M H"],
    value: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    window: Int[Array, ""] | int,
    past: Past,
) -> tuple[Float[Array, "B S N H"], Past]:
    """Return `y`, as defined in the module's docstring, and the past with the new positions. Those at the end that are
    padding are not counted. `window` is the number of positions that a position attends to, itself included.
    """
    batch, length, _, width = query.shape
    start = (0, past.place, 0, 0)
    keys = jax.lax.dynamic_update_slice(past.keys, key.astype(past.keys.dtype), start)
    values = jax.lax.dynamic_update_slice(past.values, value.astype(past.values.dtype), start)
    grouped = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("bsmgh,btmh->bmgst", grouped, keys, preferred_element_type=jnp.float32) * width**-0.5
    new, every = past.place + jnp.arange(length)[:, None], jnp.arange(keys.shape[1])
    seen = (every <= new) & (every > new - window)
    scores = jnp.where(seen, scores, MASKED)
    shares = jnp.exp(scores - scores.max(-1, keepdims=True))
    y = jnp.einsum("bmgst,btmh->bmgsh", shares.astype(query.dtype), values, preferred_element_type=jnp.float32)
    y = (y / shares.sum(-1)[..., None]).astype(query.dtype)
    y = jnp.moveaxis(y, 3, 1).reshape(query.shape)
    return y, Past(keys, values, past.place + jnp.sum(segments[0] != PADDING_SEGMENT, dtype=jnp.int32))


def rotary_rows(
    length: int, head_width: int, theta: float, past: Past | None
) -> tuple[Float[Array, "S h"], Float[Array, "S h"]]:
    """Return the rows of the rotary table for `length` positions: those after the past of stacked layers, if any."""
    if past is None:
        return rotary_table(length, head_width, theta)
    cosine, sine = rotary_table(past.keys.shape[2], head_width, theta)
    rows = (jax.lax.dynamic_slice_in_dim(part, past.place[0], length) for part in (cosine, sine))
    return next(rows), next(rows)
