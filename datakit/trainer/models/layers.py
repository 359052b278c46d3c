"""Computes the parts that models share: embedding, norms, rotary positions, gates and labels. `loss.py` has the loss.

Norms are computed in fp32 and return results in the type of their input. Every sum over many terms is fp32, in the
backward pass too: bf16 has 8 significant bits, so a bf16 sum soon ignores small terms.

No array with an entry per position is a constant of the compiled program: rotary positions are computed at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.shapes import Array, Bool, Float, Int
from datakit.trainer.models.vocabulary import split_embed
from datakit.trainer.models.weights import BATCH, TENSOR, constrain, current_mesh, gathered

# See `rotary_table`. The same for all sequence lengths, so that a position's rotation does not depend on the length.
ROTARY_STRIDE = 512


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


def stored_transposed(x: Float[Array, "*batch a b"]) -> Float[Array, "*batch b a"]:
    """Return the transposed matrices, stored as such. Use it for the first factor of a batch of products that sum over
    the rows of both factors. XLA:CPU (jaxlib 0.10.2) would otherwise merge the transposition into the product, and then
    computes the product with a general routine that takes up to 4 times as long in the loop of a training step.
    """
    return jax.lax.optimization_barrier(x.mT)
