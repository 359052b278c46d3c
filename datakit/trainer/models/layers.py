"""Computes the parts that models share: embedding, norms, rotary positions, attention, gates, labels, and the loss.

Norms, softmaxes and the loss are computed in fp32; norms and attention return results in the type of their input. Every
sum over many terms is fp32, in the backward pass too: bf16 has 8 significant bits, so a bf16 sum soon ignores small
terms.

Attention and the loss save memory. Attention processes the queries in up to eight groups, one after the other, and
keeps no [S, S] scores. For each group, it reads only the keys from the start of the first query's window (at its
maximum width) to the last query's position. The loss processes the sequence in pieces and keeps no [B, S, V] logits.
Attention and the loss recompute their intermediate values in the backward pass. On a CPU, working in parts also makes
attention three times as fast and the loss twice as fast (at 256 positions), because small arrays fit in the cache.

No array with an entry per position is a constant of the compiled program: masks and rotary positions are computed at
run time.
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
from datakit.trainer.models.weights import BATCH, current_mesh, gathered

MASKED = -1e30  # finite, so that a fully masked row does not become NaN
QUERY_BLOCKS, SMALLEST_BLOCK = 8, 32  # maximum number of query groups; their minimum size in positions; tuned on CPUs
# See `rotary_table`. The same for all sequence lengths, so that a position's rotation does not depend on the length.
ROTARY_STRIDE = 512
# Maximum size of one piece's fp32 logits. On a CPU, they fit in the cache; on a GPU, they take little of its memory.
LOGIT_BYTES = {"cpu": 8 << 20, "accelerator": 512 << 20}


def embed(table: Float[Array, "V D"], tokens: Int[Array, "B S"], dtype: Any) -> Float[Array, "B S D"]:
    """Return the rows of the fp32 table for `tokens`, cast to `dtype`.

    The cast comes last, so the table's gradient is an fp32 sum over the tokens. A bf16 sum would be wrong by up to 40 %
    for a frequent token.
    """
    return gathered(table, jnp.float32)[tokens].astype(dtype)


def rms_norm(x: Float[Array, "*batch D"], scale: Float[Array, " D"] | None, eps: float) -> Float[Array, "*batch D"]:
    """Return x / rms(x), times a learned scale if one is given. RMSNorm: Zhang and Sennrich 2019."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide if scale is None else wide * scale.astype(jnp.float32)).astype(x.dtype)


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


def attention(
    query: Float[Array, "B S N H"],
    key: Float[Array, "B S M H"],
    value: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    window: Int[Array, ""] | int,
    widest: int,
) -> Float[Array, "B S N H"]:
    """Compute causal softmax attention within segments; N / M query heads share each key head. A position attends to
    the last `window` positions, itself included. `window` may be a traced value, since it differs between the layers of
    one scan. `widest`, its upper bound, must be a Python integer.
    """
    batch, length, heads, width = query.shape
    kv_heads = key.shape[2]
    grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, width)
    wide = key.astype(jnp.float32), value.astype(jnp.float32)  # so that gradients from the groups are added in fp32
    block = max(SMALLEST_BLOCK, -(-length // QUERY_BLOCKS))
    outputs = []
    for start in range(0, length, block):
        stop, first = min(start + block, length), max(0, start - widest + 1)
        attend = jax.checkpoint(partial(_attend, start=start, first=first))
        outputs.append(attend(grouped[:, start:stop], *wide, segments, window))
    return jnp.concatenate(outputs, axis=1).reshape(batch, length, heads, width)


def _attend(
    query: Float[Array, "B s M G H"],
    key: Float[Array, "B S M H"],
    value: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    window: Int[Array, ""] | int,
    start: int,
    first: int,
) -> Float[Array, "B s M G H"]:
    """Compute the attention of consecutive queries, the first at position `start`, to the keys from `first` to the last
    query's position.
    """
    stop = start + query.shape[1]
    near_key, near_value = (wide[:, first:stop].astype(query.dtype) for wide in (key, value))
    seen = _visible(segments, window, start, first, stop)
    scores = jnp.einsum("bsmgh,btmh->bmgst", query, near_key, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None, None], scores * query.shape[-1] ** -0.5, MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bmgst,btmh->bsmgh", shares, near_value)


def _visible(
    segments: Int[Array, "B S"], window: Int[Array, ""] | int, start: int, first: int, stop: int
) -> Bool[Array, "B s t"]:
    """Return a mask of the keys in [first, stop) that each query in [start, stop) sees: same segment, in window, not
    later.
    """
    distance = (start + jnp.arange(stop - start))[:, None] - (first + jnp.arange(stop - first))
    same_segment = segments[:, start:stop, None] == segments[:, None, first:stop]
    return (distance >= 0) & (distance < window) & same_segment


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
    if current_mesh().size > 1:
        compute = jax.shard_map(
            compute, in_specs=(P(BATCH), P(), P(BATCH)), out_specs=(P(BATCH), P(BATCH)), check_vma=False
        )
    return compute(hidden, head, labels)


def _cross_entropy_of_rows(hidden: Any, head: Any, labels: Any, piece: int | None) -> tuple[Any, Any]:
    batch, length, _ = hidden.shape
    budget = LOGIT_BYTES["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    fitting = budget // (4 * batch * head.shape[1]) if piece is None else piece
    return _cross_entropy(hidden, head, labels, largest_divisor(length, fitting))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _cross_entropy(hidden: Any, head: Any, labels: Any, piece: int) -> tuple[Any, Any]:
    def one(part: tuple[Any, Any]) -> tuple[Any, Any]:
        logits = jnp.einsum("bsd,dv->bsv", part[0], head, preferred_element_type=jnp.float32)
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        return normalizer - jnp.sum(jnp.where(_chosen(part[1], logits), logits, 0.0), axis=-1), normalizer

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
    """Return a mask that selects each label's logit. Unlike indexing, a masked sum needs no scatter in the gradient."""
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
