"""Computes the cross entropy of the next tokens, and its gradient, without ever holding the logits of all positions.

    part = part_of(hidden, head, batch, config, summed)

The positions are processed in pieces, and everything is computed in fp32. On a CPU, working in pieces is also twice as
fast (at 256 positions), because small arrays fit in the cache. There are two ways to the gradient:

- `summed` = True, for training: only `objective`, the sum of the losses and the z-loss, has a gradient. It is
  computed together with the loss, while a piece's logits are at hand, so there are three products with the head.
- `summed` = False: the losses of the positions have gradients. The backward pass computes the logits again, which is a
  fourth product. For a vocabulary of 8192 and a width of 128, loss and gradient take 1.4 times as long on a CPU.

With e = exp(logits - max) and n = logsumexp(logits), the gradient of weight * (n - logit of the label + z_loss * n^2)
with respect to the logits is scale * e, with scale = weight * (1 + 2 z_loss n) / sum(e), minus the weight at the label.
The scale is applied to the small factors and results of the products instead of the logits. The label's logit is left
out of these products and added separately: when its probability is close to 1, the difference would be inexact in bf16.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.layers import next_tokens
from datakit.trainer.models.protocol import Part, Tokens
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.vocabulary import split_cross_entropy
from datakit.trainer.models.weights import BATCH, TENSOR, Tree, current_mesh

# Maximum size of one piece's fp32 logits. On a CPU, they fit in the cache; on a GPU, they take little of its memory.
LOGIT_BYTES = {"cpu": 8 << 20, "accelerator": 512 << 20}


def part_of(
    hidden: Float[Array, "B S D"],
    head: Float[Array, "D V"],
    batch: Tokens,
    config: Any,
    summed: bool,
    sums: Tree | None = None,
    kept: Any = None,
) -> Part:
    """Return the losses of a batch's rows, and the sums over them: the model's own `sums`, the number of predictions,
    and the sum of normalizer^2, from which `conclude` computes the z-loss. Unless `summed`, `objective` is None.

    `config` has the settings `z_loss` and `loss_piece`: logits are held for only that many positions at a time (None:
    as many as fit in `LOGIT_BYTES`), rounded down to a divisor of the sequence length. On a mesh, each device computes
    its own rows, so `head`'s gradient is summed over the devices only once, not once per piece.
    """
    labels, counted = next_tokens(batch.tokens, batch.segments, batch.loss_mask)
    losses, normalizer, objective = _token_losses(hidden, head, labels, counted, config, summed)
    own = {"predictions": jnp.sum(counted, dtype=jnp.int32), "z_loss": jnp.sum(counted * normalizer**2)}
    return Part(losses, counted, own | (sums or {}), kept, objective)


def _token_losses(
    hidden: Any, head: Any, labels: Any, counted: Any, config: Any, summed: bool
) -> tuple[Float[Array, "B S"], Float[Array, "B S"], Float[Array, ""] | None]:
    """Return -log p(label) in nats and the logsumexp of the logits at each position, and the objective."""
    piece_of = partial(_piece_length, piece=config.loss_piece)
    if current_mesh().shape.get(TENSOR, 1) > 1:
        losses, normalizer = split_cross_entropy(hidden, head, labels, piece_of)
        if not summed:
            return losses, normalizer, None
        objective = jnp.sum(counted * (losses + config.z_loss * normalizer**2))
    elif summed:
        compute = _on_own_rows(partial(_sum_of_rows, piece_of, config.z_loss), 3)
        totals, losses, normalizer = compute(hidden, head, labels, counted)
        objective = jnp.sum(totals)
    else:
        return *_on_own_rows(partial(_each_of_rows, piece_of), 2)(hidden, head, labels), None
    return *jax.lax.stop_gradient((losses, normalizer)), objective


def logits_at(
    hidden: Float[Array, "B S D"], head: Float[Array, "D V"], positions: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Return the fp32 logits of the tokens that follow the given positions of each row."""
    chosen = jnp.take_along_axis(hidden, positions[:, :, None], axis=1)
    return jnp.einsum("bpd,dv->bpv", chosen, head, preferred_element_type=jnp.float32)


def _on_own_rows(compute: Any, results: int) -> Any:
    """Return a function in which each device of the mesh computes its own rows with a full copy of the head."""
    if current_mesh().size <= 1:  # 0 without a mesh
        return compute
    rows = P(BATCH)
    return lambda hidden, head, *others: jax.shard_map(
        compute, in_specs=(rows, P(), *(rows for _ in others)), out_specs=(rows,) * results, check_vma=False
    )(hidden, head, *others)


def _each_of_rows(piece_of: Any, hidden: Any, head: Any, labels: Any) -> tuple[Any, Any]:
    return _cross_entropy(hidden, head, labels, piece_of(*hidden.shape[:2], head.shape[1]))


def _sum_of_rows(piece_of: Any, z_loss: float, hidden: Any, head: Any, labels: Any, counted: Any) -> Any:
    piece = piece_of(*hidden.shape[:2], head.shape[1])
    found: Any = _summed_cross_entropy(hidden, head, labels, counted, z_loss, piece)
    return found[0][None], *found[1:]


def _piece_length(batch: int, length: int, vocabulary: int, piece: int | None) -> int:
    """Return the number of positions whose logits are in memory at once, a divisor of `length`."""
    budget = LOGIT_BYTES["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    return largest_divisor(length, budget // (4 * batch * vocabulary) if piece is None else piece)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _cross_entropy(hidden: Any, head: Any, labels: Any, piece: int) -> tuple[Any, Any]:
    def one(part: tuple[Any, Any]) -> tuple[Any, Any]:
        logits = _logits(part[0], head)
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        return normalizer - _of_label(logits, part[1]), normalizer

    losses, normalizer = jax.lax.map(one, (_pieces(hidden, piece), _pieces(labels, piece)))
    return _joined(losses), _joined(normalizer)


def _cross_entropy_forward(hidden: Any, head: Any, labels: Any, piece: int) -> tuple[Any, Any]:
    result: Any = _cross_entropy(hidden, head, labels, piece)
    return result, (hidden, head, labels, result[1])


def _cross_entropy_backward(piece: int, saved: Any, cotangents: Any) -> tuple[Any, Any, None]:
    hidden, head, labels, normalizer = saved

    def one(to_head: Any, part: Any) -> tuple[Any, Any]:
        x, label, norm, to_loss, to_norm = part
        logits = _logits(x, head)
        to_logits = jnp.exp(logits - norm[..., None]) * (to_loss + to_norm)[..., None]
        to_logits = jnp.where(_chosen(label, logits), to_logits - to_loss[..., None], to_logits).astype(x.dtype)
        to_head += jnp.einsum("bsd,bsv->dv", x, to_logits, preferred_element_type=jnp.float32)
        return to_head, jnp.einsum("bsv,dv->bsd", to_logits, head)

    parts = tuple(_pieces(array, piece) for array in (hidden, labels, normalizer, *cotangents))
    to_head, to_hidden = jax.lax.scan(one, jnp.zeros(head.shape, jnp.float32), parts)
    return _joined(to_hidden), to_head.astype(head.dtype), None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _summed_cross_entropy(
    hidden: Any, head: Any, labels: Any, counted: Any, z_loss: float, piece: int
) -> tuple[Any, Any, Any]:
    """Return the objective, and the losses and normalizers, whose cotangents are ignored."""
    found: Any = _cross_entropy(hidden, head, labels, piece)
    losses, normalizer = found
    return jnp.sum(counted * (losses + z_loss * normalizer**2)), losses, normalizer


def _summed_forward(hidden: Any, head: Any, labels: Any, counted: Any, z_loss: float, piece: int) -> Any:
    def one(to_head: Any, part: Any) -> tuple[Any, Any]:
        x, label, weight = part
        logits = _logits(x, head)
        top, own = jnp.max(logits, axis=-1), _of_label(logits, label)
        others = jnp.where(_chosen(label, logits), 0.0, jnp.exp(logits - top[..., None]))
        total = jnp.sum(others, axis=-1) + jnp.exp(own - top)
        normalizer, others = top + jnp.log(total), others.astype(x.dtype)
        factor = weight * (1 + 2 * z_loss * normalizer)
        scale, to_own = (factor / total)[..., None], factor * jnp.exp(own - normalizer) - weight
        wide = x.astype(jnp.float32)
        scaled = (wide * scale).astype(x.dtype)
        to_head += jnp.einsum("bsd,bsv->dv", scaled, others, preferred_element_type=jnp.float32)
        to_x = jnp.einsum("bsv,dv->bsd", others, head).astype(jnp.float32) * scale
        return to_head, (normalizer - own, normalizer, to_x, to_own)

    parts = tuple(_pieces(array, piece) for array in (hidden, labels, counted))
    to_head, found = jax.lax.scan(one, jnp.zeros(head.shape, jnp.float32), parts)
    losses, normalizer, to_hidden, to_own = map(_joined, found)
    objective = jnp.sum(counted * (losses + z_loss * normalizer**2))
    to_hidden, to_head = _with_own(hidden, head, labels, to_own, to_hidden, to_head)
    like = jnp.zeros((), hidden.dtype), jnp.zeros((), head.dtype)
    return (objective, losses, normalizer), (to_hidden, to_head, like)


def _with_own(hidden: Any, head: Any, labels: Any, to_own: Any, to_hidden: Any, to_head: Any) -> tuple[Any, Any]:
    """Add the part of the gradient that passes through each label's logit, whose gradient is `to_own` [B, S]."""
    to_own, columns = to_own[..., None], head.T
    to_hidden += to_own * columns[labels].astype(jnp.float32)
    rows = (to_own * hidden.astype(jnp.float32)).reshape(-1, hidden.shape[-1])
    # If there is only one piece, XLA for CPUs (JAX 0.10.2) would move the transposition into the product with bf16
    # factors, and then fail to run it.
    to_head = jax.lax.optimization_barrier(to_head)
    return to_hidden, to_head.T.at[labels.reshape(-1)].add(rows).T


def _summed_backward(z_loss: float, piece: int, saved: Any, cotangents: Any) -> tuple[Any, Any, None, None]:
    to_hidden, to_head, (like_hidden, like_head) = saved
    to_objective = cotangents[0]
    return (
        (to_objective * to_hidden).astype(like_hidden.dtype),
        (to_objective * to_head).astype(like_head.dtype),
        None,
        None,
    )


_summed_cross_entropy.defvjp(_summed_forward, _summed_backward)


def _logits(x: Any, head: Any) -> Any:
    return jnp.einsum("bsd,dv->bsv", x, head, preferred_element_type=jnp.float32)


def _of_label(logits: Any, labels: Any) -> Any:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


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
