"""Computes the parts that models share: embedding, norms, rotary positions, gates, labels, and the loss.

Norms and the loss are computed in fp32; norms return results in the type of their input. Every sum over many terms is
fp32, in the backward pass too: bf16 has 8 significant bits, so a bf16 sum soon ignores small terms.

The loss saves memory: it processes the sequence in pieces, keeps no [B, S, V] logits, and recomputes its intermediate
values in the backward pass. On a CPU, working in pieces also makes it twice as fast (at 256 positions), because small
arrays fit in the cache.

No array with an entry per position is a constant of the compiled program: rotary positions are computed at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.vocabulary import split_cross_entropy, split_embed
from datakit.trainer.models.weights import BATCH, TENSOR, constrain, current_mesh, gathered

# See `rotary_table`. The same for all sequence lengths, so that a position's rotation does not depend on the length.
ROTARY_STRIDE = 512
# Maximum size of one piece's fp32 logits. On a CPU, they fit in the cache; on a GPU, they take little of its memory.
LOGIT_BYTES = {"cpu": 8 << 20, "accelerator": 512 << 20}


def embed(table: Float[Array, "V D"], tokens: Int[Array, "B S"], dtype: Any) -> Float[Array, "B S D"]:
    """Return the rows of the fp32 table for `tokens`, cast to `dtype`.

    The cast comes last, so the table's gradient is an fp32 sum over the tokens. A bf16 sum would be wrong by up to 40 %
    for a frequent token.
    """
    if current_mesh().shape.get(TENSOR, 1) > 1:
        return split_embed(table, tokens, dtype)
    return gathered(table, jnp.float32)[tokens].astype(dtype)


def rms_norm(x: Float[Array, "*batch D"], scale: Float[Array, " D"] | None, eps: float) -> Float[Array, "*batch D"]:
    """Return x / rms(x), times a learned scale if one is given. RMSNorm: Zhang and Sennrich 2019."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide if scale is None else wide * scale.astype(jnp.float32)).astype(x.dtype)


def to_heads(x: Float[Array, "B S D"], weight: Float[Array, "D W"]) -> Float[Array, "B S W"]:
    """Return x @ weight, of which each device of the axis "tensor" computes the columns of its heads."""
    return constrain(constrain(x, P(BATCH)) @ gathered(weight, x.dtype, P(None, TENSOR)), P(BATCH, None, TENSOR))


def from_heads(y: Float[Array, "B S W"], weight: Float[Array, "W D"]) -> Float[Array, "B S D"]:
    """Return y @ weight, where each device of the axis "tensor" has the rows of its heads."""
    return constrain(constrain(y, P(BATCH, None, TENSOR)) @ gathered(weight, y.dtype, P(TENSOR)), P(BATCH))


def gated_norm(
    x: Float[Array, "*batch D"], down: Float[Array, "D G"], up: Float[Array, "G D"]
) -> Float[Array, "*batch D"]:
    """Return x * sigmoid(silu(x @ down) @ up): a low-rank gate on a normalized input."""
    return x * jax.nn.sigmoid(jax.nn.silu(x @ down) @ up)


def rotary_table(length: int, head_width: int, theta: float) -> tuple[Float[Array, "S h"], Float[Array, "S h"]]:
    """Return (cosine, sine) of position * frequency in fp32, each [S, head_width / 2]. RoPE: Su et al. 2021.

    Each position is split into a multiple of `ROTARY_STRIDE` and a remainder. The cosines and sines for these parts are
    constants, computed in fp64, and are combined by the angle addition formulas. So the constants of the program stay
    small, and distant positions stay exact.
    """
    frequency = theta ** -(np.arange(0, head_width, 2, dtype=np.float64) / head_width)
    far = np.arange(-(-length // ROTARY_STRIDE))[:, None, None] * ROTARY_STRIDE * frequency
    near = np.arange(ROTARY_STRIDE)[None, :, None] * frequency
    (cosine, sine), (near_cosine, near_sine) = (
        (jnp.asarray(np.cos(angle), jnp.float32), jnp.asarray(np.sin(angle), jnp.float32)) for angle in (far, near)
    )
    table = cosine * near_cosine - sine * near_sine, sine * near_cosine + cosine * near_sine
    return table[0].reshape(-1, frequency.size)[:length], table[1].reshape(-1, frequency.size)[:length]


def rotate(
    x: Float[Array, "B S N H"], table: tuple[Float[Array, "S h"], Float[Array, "S h"]]
) -> Float[Array, "B S N H"]:
    """Apply rotary position embedding, which pairs the first half of each head's width with the second half."""
    cosine, sine = (part[:, None, :] for part in table)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).astype(x.dtype)


def exclude_self(attended: Float[Array, "B S N H"], value: Float[Array, "B S M H"]) -> Float[Array, "B S N H"]:
    """Remove from each head's output its component along the position's own value (XSA)."""
    own = jnp.repeat(value.astype(jnp.float32), attended.shape[2] // value.shape[2], axis=2)
    wide = attended.astype(jnp.float32)
    along = jnp.sum(wide * own, axis=-1, keepdims=True) / (jnp.sum(own * own, axis=-1, keepdims=True) + 1e-6)
    return (wide - along * own).astype(attended.dtype)


def silu_gate(gate_up: Float[Array, "*rows F"]) -> Float[Array, "*rows I"]:
    """Return silu(gate) * up, where `gate_up` holds gate and up side by side. SwiGLU: Shazeer 2020."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return jax.nn.silu(gate) * up


def bilinear_gate(gate_up: Float[Array, "*rows F"]) -> Float[Array, "*rows I"]:
    """Return gate * up, whose only nonlinearity is the product."""
    gate, up = jnp.split(gate_up, 2, axis=-1)
    return gate * up


GATES: dict[str, Callable[[Any], Any]] = {"swiglu": silu_gate, "bilinear": bilinear_gate}


def next_tokens(
    tokens: Int[Array, "B S"], segments: Int[Array, "B S"], loss_mask: Bool[Array, "B S"]
) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    """Return the label and weight of each position. Position i predicts token i + 1. The weight is 1 if that token's
    mask is set and tokens i and i + 1 are in the same segment, otherwise 0. So the prediction of a document's first
    token never counts, and the last position has weight 0.
    """
    labels = jnp.concatenate([tokens[:, 1:], tokens[:, :1]], axis=1)
    counted = loss_mask[:, 1:] & (segments[:, 1:] == segments[:, :-1])
    return labels, jnp.pad(counted, ((0, 0), (0, 1))).astype(jnp.float32)


def cross_entropy(
    hidden: Float[Array, "B S D"], head: Float[Array, "D V"], labels: Int[Array, "B S"], piece: int | None = None
) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
    """Return -log p(label) and the logsumexp of the logits for each position, in nats and in fp32. Logits are held for
    only `piece` positions at a time (None: as many as fit in `LOGIT_BYTES`). In both cases, the number of positions is
    rounded down to a divisor of the sequence length. On a mesh, each device computes its own rows, so `head`'s gradient
    is summed over the devices only once, not once per piece.
    """
    compute = partial(_cross_entropy_of_rows, piece=piece)
    if current_mesh().shape.get(TENSOR, 1) > 1:
        return split_cross_entropy(hidden, head, labels, partial(_piece_length, piece=piece))
    if current_mesh().size > 1:
        compute = jax.shard_map(
            compute, in_specs=(P(BATCH), P(), P(BATCH)), out_specs=(P(BATCH), P(BATCH)), check_vma=False
        )
    return compute(hidden, head, labels)


def _cross_entropy_of_rows(hidden: Any, head: Any, labels: Any, piece: int | None) -> tuple[Any, Any]:
    batch, length, _ = hidden.shape
    return _cross_entropy(hidden, head, labels, _piece_length(batch, length, head.shape[1], piece))


def _piece_length(batch: int, length: int, vocabulary: int, piece: int | None) -> int:
    """Return the number of positions whose logits are in memory at once, a divisor of `length`."""
    budget = LOGIT_BYTES["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    return largest_divisor(length, budget // (4 * batch * vocabulary) if piece is None else piece)


def logits_at(
    hidden: Float[Array, "B S D"], head: Float[Array, "D V"], positions: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Return the fp32 logits of the tokens that follow the given positions of each row."""
    chosen = jnp.take_along_axis(hidden, positions[:, :, None], axis=1)
    return jnp.einsum("bpd,dv->bpv", chosen, head, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _cross_entropy(hidden: Any, head: Any, labels: Any, piece: int) -> tuple[Any, Any]:
    def one(part: tuple[Any, Any]) -> tuple[Any, Any]:
        logits = jnp.einsum("bsd,dv->bsv", part[0], head, preferred_element_type=jnp.float32)
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        return normalizer - jnp.take_along_axis(logits, part[1][..., None], axis=-1)[..., 0], normalizer

    losses, normalizer = jax.lax.map(one, (_pieces(hidden, piece), _pieces(labels, piece)))
    return _joined(losses), _joined(normalizer)


def _cross_entropy_forward(hidden: Any, head: Any, labels: Any, piece: int) -> tuple[Any, Any]:
    result: Any = _cross_entropy(hidden, head, labels, piece)
    return result, (hidden, head, labels, result[1])


def _cross_entropy_backward(piece: int, saved: Any, cotangents: Any) -> tuple[Any, Any, None]:
    hidden, head, labels, normalizer = saved

    def one(to_head: Any, part: Any) -> tuple[Any, Any]:
        x, label, norm, to_loss, to_norm = part
        logits = jnp.einsum("bsd,dv->bsv", x, head, preferred_element_type=jnp.float32)
        to_logits = jnp.exp(logits - norm[..., None]) * (to_loss + to_norm)[..., None]
        to_logits = jnp.where(_chosen(label, logits), to_logits - to_loss[..., None], to_logits).astype(x.dtype)
        to_head += jnp.einsum("bsd,bsv->dv", x, to_logits, preferred_element_type=jnp.float32)
        return to_head, jnp.einsum("bsv,dv->bsd", to_logits, head)

    parts = tuple(_pieces(array, piece) for array in (hidden, labels, normalizer, *cotangents))
    to_head, to_hidden = jax.lax.scan(one, jnp.zeros(head.shape, jnp.float32), parts)
    return _joined(to_hidden), to_head.astype(head.dtype), None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _chosen(labels: Any, logits: Any) -> Any:
    """Return a mask that selects each label's logit."""
    return jnp.arange(logits.shape[-1]) == labels[..., None]


def _pieces(array: Any, piece: int) -> Any:
    batch, length, *rest = array.shape
    return array.reshape(batch, length // piece, piece, *rest).swapaxes(0, 1)


def _joined(pieces: Any) -> Any:
    count, batch, piece, *rest = pieces.shape
    return pieces.swapaxes(0, 1).reshape(batch, count * piece, *rest)


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is at most `limit`.
    >>> largest_divisor(96, 40)
    32
    """
    return next(divisor for divisor in range(min(number, max(limit, 1)), 0, -1) if number % divisor == 0)
