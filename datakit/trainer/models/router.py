"""Chooses each token's experts and their weights, computes balancing biases and losses, and names the router's metrics.
`sigmoid_route` is the quantile-balanced router, which docs/models.md describes. `softmax_route` is the classical
router, which is balanced by a loss.

Balancing needs, for each expert, the q-th largest of its scores over the tokens of the batch (see
`quantile_thresholds`). This value is found bit by bit (on a mesh, four bits at a time) by counting the scores that
reach a candidate value. Each count is a sum of integers, which is exact under any sharding. So the bias does not depend
on the number of devices, and nothing is sorted. On a mesh, each device routes its own tokens (`on_own_tokens`). Only
the statistics and the counts (eight arrays [15, E]) are summed over the devices, so no [T, E] array of the whole batch
exists. The logits are computed in fp32: this is only a thousandth of a model's work, and in bf16, rounding could change
which of two experts with nearly equal scores is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.shapes import Array, Bool, Float, Int, UInt
from datakit.trainer.models.weights import TOKENS, current_mesh

# Each round of `kth_largest` finds this many bits of the value, on one device and on a mesh. A round that finds n bits
# needs 2**n - 1 counts per expert, so more bits mean fewer rounds but more counts.
ROUND_BITS = {"alone": 1, "mesh": 4}
WEIGHTED = "router/aux_loss_weighted"  # the metric of the routers' part of the auxiliary loss, which a model computes
Axes = tuple[str, ...]  # the mesh axes over which the tokens of a function's arguments are split


class Routing(NamedTuple):
    """Each token's experts, and their weights in the token's output."""

    expert: Int[Array, "T K"]
    share: Float[Array, "T K"]


class RouterSums(NamedTuple):
    """Sums over a layer's valid tokens, from which `averaged` computes the statistics. A scan over layers prepends a
    layer axis. The sums of the parts of a batch add up to those of the batch.
    """

    tokens: Int[Array, "*layers"]  # number of valid tokens
    assignments: Int[Array, "*layers E"]  # number of valid tokens sent to each expert
    probability: Float[Array, "*layers E"]  # sum of the softmax of the unbiased logits
    squares: Float[Array, "*layers"]  # sum of the squared logsumexp of the logits
    overflow: Float[Array, "*layers"] | None = None  # as in RouterStatistics; only of a whole batch


class RouterStatistics(NamedTuple):
    """Statistics of a layer's router over valid tokens. A scan over layers prepends a layer axis."""

    load: Float[Array, "*layers E"]  # each expert's share of the assignments
    probability: Float[Array, "*layers E"]  # mean over tokens of the softmax of the unbiased logits
    z_loss: Float[Array, "*layers"]  # mean over tokens of the squared logsumexp of the logits
    overflow: Float[Array, "*layers"] | None = None  # share of the assignments that a capacity dropped; None: no limit


def on_own_tokens(route: Callable[..., tuple[Any, Any]], tokens: Any, weights: Any) -> tuple[Any, Any]:
    """Call `route(tokens, weights, axes)` on each device's tokens; return (results per token, sums over all tokens).

    Whatever `route` sums over tokens, it must also sum over the mesh axes `axes`.
    """
    if current_mesh().size <= 1:
        return route(tokens, weights, axes=())
    own = partial(route, axes=TOKENS)
    return jax.shard_map(own, in_specs=(P(TOKENS), P()), out_specs=(P(TOKENS), P()))(tokens, weights)


def router_logits(hidden: Float[Array, "T D"], weight: Float[Array, "D E"]) -> Float[Array, "T E"]:
    """Compute the router logits, in fp32 throughout."""
    return jnp.dot(hidden.astype(jnp.float32), weight.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def sigmoid_route(logits: Float[Array, "T E"], bias: Float[Array, " E"], choices: int) -> Routing:
    """Choose experts by logit + bias, and weight them by sigmoid(logit), without renormalizing."""
    _, expert = jax.lax.top_k(jax.lax.stop_gradient(logits) + bias, choices)
    return Routing(expert, jax.nn.sigmoid(_pick(logits, expert)))


def softmax_route(logits: Float[Array, "T E"], choices: int, renormalize: bool) -> Routing:
    """Choose and weight experts by probability. `renormalize` makes a token's weights sum to one."""
    probability = jax.nn.softmax(logits, axis=-1)
    _, expert = jax.lax.top_k(jax.lax.stop_gradient(probability), choices)
    share = _pick(probability, expert)
    return Routing(expert, share / jnp.sum(share, axis=-1, keepdims=True) if renormalize else share)


def _pick(values: Float[Array, "T E"], expert: Int[Array, "T K"]) -> Float[Array, "T K"]:
    chosen = expert[..., None] == jnp.arange(values.shape[-1])
    return jnp.sum(jnp.where(chosen, values[:, None, :], 0.0), axis=-1)


def router_sums(
    logits: Float[Array, "T E"], expert: Int[Array, "T K"], valid: Bool[Array, " T"], axes: Axes = ()
) -> RouterSums:
    """Compute the sums over valid tokens, of which `probability` and `squares` are differentiable."""
    assigned = (expert[..., None] == jnp.arange(logits.shape[-1])) & valid[:, None, None]
    probability = jnp.sum(jnp.where(valid[:, None], jax.nn.softmax(logits, axis=-1), 0.0), axis=0)
    normalizer = jnp.where(valid, jax.nn.logsumexp(logits, axis=-1), 0.0)
    own = RouterSums(jnp.sum(valid), jnp.sum(assigned, axis=(0, 1)), probability, jnp.sum(normalizer**2))
    return jax.lax.psum(own, axes)


def averaged(sums: RouterSums, choices: int) -> RouterStatistics:
    """Return the statistics of the tokens over which `sums` were taken, each of which chose `choices` experts."""
    tokens = jnp.maximum(sums.tokens, 1)
    load = sums.assignments / (tokens[..., None] * choices)
    return RouterStatistics(load, sums.probability / tokens[..., None], sums.squares / tokens, sums.overflow)


def load_entropy(load: Float[Array, "*layers E"]) -> Float[Array, "*layers"]:
    """Return the entropy of a load, in nats; it is log(E) if the load is perfectly even."""
    return -jnp.sum(load * jnp.log(jnp.maximum(load, 1e-30)), axis=-1)


def balance_loss(
    load: Float[Array, "*layers E"], probability: Float[Array, "*layers E"], choices: int
) -> Float[Array, "*layers"]:
    """Return E * sum(load * K * probability): K if the load is even (Switch Transformer, Fedus et al. 2021, eq. 4)."""
    return load.shape[-1] * choices * jnp.sum(load * probability, axis=-1)


def router_metrics(stats: RouterStatistics, choices: int) -> dict[str, Array]:
    """Return the router's metrics by name; each metric has one entry per layer."""
    overflow = {} if stats.overflow is None else {"router/capacity_overflow_rate": stats.overflow}
    return overflow | {
        "router/routing_hist": stats.load,
        "router/routing_entropy": load_entropy(stats.load),
        "router/load_balancing_loss": balance_loss(stats.load, stats.probability, choices),
        "router/router_z_loss": stats.z_loss,
    }


def quantile_thresholds(
    logits: Float[Array, "T E"], bias: Float[Array, " E"], choices: int, valid: Bool[Array, " T"], axes: Axes = ()
) -> Float[Array, " E"]:
    """Return, for each expert, the threshold that its excess reaches for V * K / E of the V valid tokens. The threshold
    is the expert's q-th largest excess, with q = max(1, floor(V * K / E)). With `axes`, V counts the valid tokens of
    all devices.
    """
    wanted = jnp.maximum(1, jax.lax.psum(jnp.sum(valid), axes) * choices // logits.shape[-1])
    return kth_largest(excess(logits, bias, choices, valid), wanted, axes)


def excess(
    logits: Float[Array, "T E"], bias: Float[Array, " E"], choices: int, valid: Bool[Array, " T"]
) -> Float[Array, "T E"]:
    """Return each expert's excess for each token: its unbiased logit minus the token's bar, which is the token's
    (K + 1)-th largest biased logit. The excess is -inf for invalid tokens.
    """
    logits = jax.lax.stop_gradient(logits)
    # We take the minimum instead of the last entry, because slicing top_k's result makes XLA:CPU sort everything.
    bar = jnp.min(jax.lax.top_k(logits + bias, choices + 1)[0], axis=-1, keepdims=True)
    return jnp.where(valid[:, None], logits - bar, -jnp.inf)


def thresholds_of_parts(
    excess: Float[Array, "parts L T E"], tokens: Int[Array, " L"], choices: int
) -> Float[Array, "L E"]:
    """Return each layer's thresholds, as `quantile_thresholds` does, from the excesses of all parts of a batch.
    `tokens` is the number of valid tokens of the whole batch. The layers are searched one after the other, to save
    memory.
    """
    wanted = jnp.maximum(1, tokens * choices // excess.shape[-1])

    def search(excess: Any, wanted: Any, axes: Axes) -> Any:
        def one(layer: tuple[Any, Any]) -> Any:
            return kth_largest(layer[0].reshape(-1, layer[0].shape[-1]), layer[1], axes)

        return jax.lax.map(one, (jnp.swapaxes(excess, 0, 1), wanted))

    if current_mesh().size <= 1:
        return search(excess, wanted, ())
    own = partial(search, axes=TOKENS)
    return jax.shard_map(own, in_specs=(P(None, None, TOKENS), P()), out_specs=P())(excess, wanted)


def balanced_bias(threshold: Float[Array, "*layers E"]) -> Float[Array, "*layers E"]:
    """Return the bias for the next step: the negated thresholds, shifted to a mean of zero."""
    return jnp.mean(threshold, axis=-1, keepdims=True) - threshold


def kth_largest(values: Float[Array, "T E"], k: Int[Array, ""] | int, axes: Axes = ()) -> Float[Array, " E"]:
    """Return the exact k-th largest value of each column. `k` counts from 1 and may be a traced value."""
    keys, bits = _ordered_bits(values), ROUND_BITS["mesh" if axes else "alone"]
    digits, rounds = jnp.arange(1, 1 << bits, dtype=jnp.uint32)[:, None], 32 // bits

    def settle(step: Any, found: Any) -> Any:
        shift = (bits * (rounds - 1 - step)).astype(jnp.uint32)
        counts = jnp.sum(keys[:, None] >= (found | digits << shift), axis=0, dtype=jnp.int32)
        reached = jax.lax.psum(counts, axes) >= k  # true for the digits up to the one that is sought
        return found | jnp.sum(reached, axis=0, dtype=jnp.uint32) << shift

    return _from_ordered_bits(jax.lax.fori_loop(0, rounds, settle, jnp.zeros(values.shape[-1], jnp.uint32)))


def _ordered_bits(values: Float[Array, "T E"]) -> UInt[Array, "T E"]:
    """Map fp32 to uint32, preserving the order: flip the sign bit of positive numbers and all bits of negative ones."""
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    return jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))


def _from_ordered_bits(keys: UInt[Array, " E"]) -> Float[Array, " E"]:
    bits = jnp.where(keys >> 31, keys & jnp.uint32(0x7FFFFFFF), ~keys)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
