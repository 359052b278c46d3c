"""The blocks that every model here is made of: norms, rotary positions, attention, the loss. Pure functions on arrays.

Norms, softmaxes and the loss compute in fp32 whatever comes in, and return what came in. Two of the blocks are written
for memory: attention goes through blocks of queries (no [S, S] score matrix beyond one block, and keys after the block
or before the widest window are never touched), and the loss through pieces of the sequence (no [B, S, V] logits).
Both recompute their insides in the backward pass: about a third more of their own work for memory that is linear in S.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.trainer.shapes import Array, Bool, Float, Int

MASKED = -1e30  # finite: a row that is masked throughout must not become NaN
QUERY_BLOCK = 512


def rms_norm(x: Float[Array, "*batch D"], scale: Float[Array, " D"] | None, eps: float) -> Float[Array, "*batch D"]:
    """x / rms(x), times a learned scale where there is one."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide if scale is None else wide * scale.astype(jnp.float32)).astype(x.dtype)


def gated_norm(
    x: Float[Array, "*batch D"], down: Float[Array, "D G"], up: Float[Array, "G D"]
) -> Float[Array, "*batch D"]:
    """x * sigmoid(silu(x down) up): a low-rank gate on an input that is already normalised."""
    return x * jax.nn.sigmoid(jax.nn.silu(x @ down) @ up)


def rotary_table(length: int, head_width: int, theta: float) -> tuple[Float[Array, "S h"], Float[Array, "S h"]]:
    """(cosine, sine) of position x frequency, fp32, for half of the head's width."""
    frequency = theta ** -(np.arange(0, head_width, 2, dtype=np.float64) / head_width)
    angle = np.arange(length, dtype=np.float64)[:, None] * frequency
    return jnp.asarray(np.cos(angle), jnp.float32), jnp.asarray(np.sin(angle), jnp.float32)


def rotate(
    x: Float[Array, "B S N H"], table: tuple[Float[Array, "S h"], Float[Array, "S h"]]
) -> Float[Array, "B S N H"]:
    """Rotary position embedding; the first half of the head's width pairs with the second."""
    cosine, sine = (part[:, None, :] for part in table)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).astype(x.dtype)


def attention(
    query: Float[Array, "B S N H"],
    key: Float[Array, "B S M H"],
    value: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    window: Int[Array, ""] | int,
    widest: int,
) -> Float[Array, "B S N H"]:
    """Causal softmax attention inside segments, over the last `window` positions; N / M queries share a key head.

    `window` may be traced (layers under one scan differ in it); `widest`, its upper bound, may not.
    """
    batch, length, heads, width = query.shape
    kv_heads = key.shape[2]
    grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, width)
    attend = _attend if length <= QUERY_BLOCK else jax.checkpoint(_attend)
    outputs = []
    for start in range(0, length, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, length)
        first = max(0, start - widest + 1)
        seen = _visible(np.arange(start, stop), np.arange(first, stop), window)
        seen = seen[None] & (segments[:, start:stop, None] == segments[:, None, first:stop])
        outputs.append(attend(grouped[:, start:stop], key[:, first:stop], value[:, first:stop], seen))
    return jnp.concatenate(outputs, axis=1).reshape(batch, length, heads, width)


def _visible(query_at: np.ndarray, key_at: np.ndarray, window: Int[Array, ""] | int) -> Bool[Array, "s t"]:
    distance = jnp.asarray(query_at[:, None] - key_at[None, :])
    return (distance >= 0) & (distance < window)


def _attend(
    query: Float[Array, "B s M G H"],
    key: Float[Array, "B t M H"],
    value: Float[Array, "B t M H"],
    seen: Bool[Array, "B s t"],
) -> Float[Array, "B s M G H"]:
    scores = jnp.einsum("bsmgh,btmh->bmgst", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None, None], scores * query.shape[-1] ** -0.5, MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bmgst,btmh->bsmgh", shares, value)


def exclude_self(attended: Float[Array, "B S N H"], value: Float[Array, "B S M H"]) -> Float[Array, "B S N H"]:
    """Remove from each head's output its component along the position's own value (XSA)."""
    own = jnp.repeat(value, attended.shape[2] // value.shape[2], axis=2).astype(jnp.float32)
    wide = attended.astype(jnp.float32)
    along = jnp.sum(wide * own, axis=-1, keepdims=True) / (jnp.sum(own * own, axis=-1, keepdims=True) + 1e-6)
    return (wide - along * own).astype(attended.dtype)


def silu_gate(gate_up: Float[Array, "*rows F"]) -> Float[Array, "*rows I"]:
    """SwiGLU's middle: silu(gate) * up, from the two side by side."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return jax.nn.silu(gate) * up


def bilinear_gate(gate_up: Float[Array, "*rows F"]) -> Float[Array, "*rows I"]:
    """gate * up: no nonlinearity but the product."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return gate * up


GATES: dict[str, Callable[[Any], Any]] = {"swiglu": silu_gate, "bilinear": bilinear_gate}


def next_tokens(
    tokens: Int[Array, "B S"], segments: Int[Array, "B S"], loss_mask: Bool[Array, "B S"]
) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    """(labels, weights) of the positions: position i predicts token i + 1.

    A prediction counts where the predicted token's mask is set and both tokens are of one segment: the first token of a
    document has nothing to be predicted from. The last position predicts nothing.
    """
    labels = jnp.concatenate([tokens[:, 1:], tokens[:, :1]], axis=1)
    counted = loss_mask[:, 1:] & (segments[:, 1:] == segments[:, :-1])
    return labels, jnp.pad(counted, ((0, 0), (0, 1))).astype(jnp.float32)


def cross_entropy(
    hidden: Float[Array, "B S D"], head: Float[Array, "D V"], labels: Int[Array, "B S"], piece: int
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """(-log p(label), logsumexp of the logits), fp32; logits of `piece` positions exist at a time."""
    batch, length, width = hidden.shape
    piece = largest_divisor(length, piece)
    one = partial(_cross_entropy, head=head)
    if piece == length:
        return one(hidden, labels)
    pieces = (
        hidden.reshape(batch, length // piece, piece, width).swapaxes(0, 1),
        labels.reshape(batch, length // piece, piece).swapaxes(0, 1),
    )
    loss, normalizer = jax.lax.map(lambda part: jax.checkpoint(one)(*part), pieces)
    return loss.swapaxes(0, 1).reshape(batch, length), normalizer.swapaxes(0, 1).reshape(batch, length)


def _cross_entropy(
    hidden: Float[Array, "B s D"], labels: Int[Array, "B s"], head: Float[Array, "D V"]
) -> tuple[Float[Array, "B s"], Float[Array, "B s"]]:
    logits = jnp.einsum("bsd,dv->bsv", hidden, head, preferred_element_type=jnp.float32)
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    # A compare and a sum instead of an index: its gradient needs no scatter.
    chosen = jnp.arange(logits.shape[-1]) == labels[..., None]
    return normalizer - jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1), normalizer


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`.

    >>> largest_divisor(96, 40)
    32
    """
    return next(divisor for divisor in range(min(number, max(limit, 1)), 0, -1) if number % divisor == 0)
