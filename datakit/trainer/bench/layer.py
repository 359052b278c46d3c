"""Builds the function that a case measures: routed experts and, optionally, a shared one, forward or with gradients.

    production          the trainer's own function (`models/experts/experts.py`), with any backend and exchange
    baseline            gate and up as two grouped products, rows weighted after the last product
    fused               gate and up as one grouped product
    preweight           as baseline, but rows are weighted before the last product
    fused_preweight     both
    scatter             as fused, but rows are added to their tokens by a scatter instead of gathers

The loss is the mean of the squared output. Gradients are those of the input and all weights. The router is not part of
the layer: experts and shares are inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.bench.case import Case
from datakit.trainer.bench.quantize import fake_int8
from datakit.trainer.models.experts.capacity import Limit
from datakit.trainer.models.experts.expert_sort import Sorted, combine, sort_by_expert, spread
from datakit.trainer.models.experts.experts import experts
from datakit.trainer.models.experts.grouped_product import tokamax_matmul
from datakit.trainer.models.layers import silu_gate
from datakit.trainer.models.router import Routing
from datakit.trainer.models.weights import BATCH

Arrays = dict[str, Any]


def arrays(case: Case, key: Any) -> Arrays:
    """Draw the input and the weights of a case."""
    c = case
    shapes = {
        "x": (c.tokens, c.hidden),
        "w_in": (c.experts, c.hidden, 2 * c.width),
        "w_out": (c.experts, c.width, c.hidden),
    }
    if c.shared:
        shapes |= {"shared_in": (c.hidden, 2 * c.shared), "shared_out": (c.shared, c.hidden)}
    keys = jax.random.split(key, len(shapes))
    return {
        name: (jax.random.normal(one, shape) * (1.0 if name == "x" else shape[-2] ** -0.5)).astype(c.dtype)
        for one, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def limit_of(case: Case) -> Limit | None:
    """Return the case's limit, in blocks of the tokens that a device processes at once; None if nothing is dropped."""
    if case.policy == "none":
        return None
    pieces = case.pieces
    return Limit(case.tokens // pieces, case.experts, -(-case.per_expert // pieces))


def limited(case: Case, expert: Any, share: Any) -> tuple[Any, Any]:
    """Apply the case's capacity: dropped assignments get the expert `case.experts` (nobody) and the share 0."""
    limit = limit_of(case)
    if limit is None:
        return expert, share
    routing, _ = limit.clip(Routing(expert, share), jnp.ones(case.tokens, bool), case.experts)
    return routing.expert, jnp.where(routing.expert < case.experts, share, 0.0)


def layer_of(case: Case) -> Callable[[Arrays, Any, Any], Any]:
    """Return the forward pass: (arrays, expert [T, K], share [T, K]) -> output [T, D]."""
    routed = _production(case) if not case.grouped else (_padded if case.policy == "pad" else _grouped)(case)
    routed = jax.checkpoint(routed) if case.remat == "expert_mlp" and not case.grouped else routed

    def layer(given: Arrays, expert: Any, share: Any) -> Any:
        given = quantized(case, given)
        y = routed(given["x"], expert, share, given["w_in"], given["w_out"])
        return y + _shared(case, given) if case.shared else y

    return layer


def timed_function(case: Case) -> Callable[..., Any]:
    """Return what a row times: (arrays, expert, share) -> output, or (loss, gradients)."""
    layer = layer_of(case)
    if case.passes == "forward":
        return layer

    def loss(given: Arrays, expert: Any, share: Any) -> Any:
        return jnp.mean(layer(given, expert, share).astype(jnp.float32) ** 2)

    return jax.value_and_grad(loss)


def quantized(case: Case, given: Arrays) -> Arrays:
    """Round the arrays that the case's quantization names."""
    names = {
        "none": (),
        "int8_weights": ("w_in", "w_out"),
        "int8_routed": ("x", "w_in", "w_out"),
        "int8_all": tuple(given),
    }[case.quantization]
    return given | {name: fake_int8(given[name]) for name in names}


def _shared(case: Case, given: Arrays) -> Any:
    x, w_in = given["x"], given["shared_in"]
    if case.grouped and not case.shared_fused:
        gate, up = jnp.split(w_in, 2, axis=-1)
        return (jax.nn.silu(x @ gate) * (x @ up)) @ given["shared_out"]
    return silu_gate(x @ w_in) @ given["shared_out"]


def _production(case: Case) -> Callable[..., Any]:
    compute = partial(experts, gate="swiglu", backend=case.backend, exchange=case.exchange, limit=limit_of(case))
    if case.parallel != "overlapped":
        return compute

    def in_pieces(x: Any, expert: Any, share: Any, w_in: Any, w_out: Any) -> Any:
        """Compute two halves of each device's tokens, so that one half's exchange can overlap the other's products."""
        half = partial(_half, devices=case.devices)
        parts = [compute(half(x, i), half(expert, i), half(share, i), w_in, w_out) for i in range(2)]
        stacked = jnp.stack([part.reshape(case.devices, -1, part.shape[-1]) for part in parts], axis=1)
        return jax.lax.with_sharding_constraint(stacked.reshape(x.shape), P(BATCH))

    return in_pieces


def _half(array: Any, number: int, devices: int) -> Any:
    """Return one half of each device's rows."""
    split = array.reshape(devices, 2, -1, array.shape[-1])[:, number]
    return jax.lax.with_sharding_constraint(split.reshape(-1, array.shape[-1]), P(BATCH))


def order_of(case: Case, expert: Any, share: Any) -> Sorted:
    """Sort the assignments by the case's packing strategy."""
    if case.packing == "counts":
        return sort_by_expert(expert, case.experts)
    flat, place = expert.reshape(-1), jnp.arange(expert.size, dtype=jnp.int32)
    if case.packing == "argsort":
        order = jnp.argsort(flat, stable=True)
    elif case.packing == "tuple_sort":
        order = jax.lax.sort((flat, place), num_keys=2)[1]
    else:
        order = jax.lax.sort((flat, -jax.lax.stop_gradient(share).reshape(-1), place), num_keys=3)[2]
    row = jnp.zeros_like(place).at[order].set(place, unique_indices=True)
    counts = jnp.sum(flat[:, None] == jnp.arange(case.experts), axis=0, dtype=jnp.int32)
    return Sorted(order // expert.shape[1], row.reshape(expert.shape), counts)


def product_of(case: Case) -> Callable[[Any, Any, Any], Any]:
    """Return the grouped product (rows, weights, counts) -> rows of the case's backend."""
    backend = "ragged" if case.backend == "auto" and jax.default_backend() != "gpu" else case.backend
    return jax.lax.ragged_dot if backend == "ragged" else tokamax_matmul


def stages_of(case: Case) -> dict[str, Callable[..., Any]]:
    """Return the parts of a layer that is built from grouped products: pack, up, down and combine."""
    product, weighted_before = product_of(case), "preweight" in case.implementation

    def pack(x: Any, order: Sorted) -> Any:
        return spread(x, order)

    def up(rows: Any, w_in: Any, order: Sorted) -> Any:
        if case.implementation in ("baseline", "preweight"):
            gate, upward = jnp.split(w_in, 2, axis=-1)
            return jax.nn.silu(product(rows, gate, order.counts)) * product(rows, upward, order.counts)
        return silu_gate(product(rows, w_in, order.counts))

    def down(middle: Any, w_out: Any, share: Any, order: Sorted) -> Any:
        if weighted_before:
            middle = middle * _by_row(share, order)[:, None].astype(middle.dtype)
        return product(middle, w_out, order.counts)

    def together(rows: Any, share: Any, order: Sorted) -> Any:
        if case.implementation == "scatter":
            rows = rows.astype(jnp.float32) * _by_row(share, order)[:, None]
            zeros = jnp.zeros((case.tokens, case.hidden), jnp.float32)
            return zeros.at[order.token].add(rows).astype(case.dtype)
        return combine(rows, jnp.ones_like(share) if weighted_before else share, order)

    return {"pack": pack, "up": up, "down": down, "combine": together}


def _by_row(share: Any, order: Sorted) -> Any:
    """Return each row's share. Unlike `expert_sort.by_row`, this has a gradient."""
    place = jnp.zeros(order.row.size, jnp.int32)
    place = place.at[order.row.reshape(-1)].set(jnp.arange(order.row.size, dtype=jnp.int32), unique_indices=True)
    return share.reshape(-1)[place]


def _grouped(case: Case) -> Callable[..., Any]:
    stages = stages_of(case)
    together = jax.checkpoint(stages["combine"]) if case.remat == "combine" else stages["combine"]

    def mlp(rows: Any, w_in: Any, w_out: Any, share: Any, order: Sorted) -> Any:
        return stages["down"](stages["up"](rows, w_in, order), w_out, share, order)

    mlp = jax.checkpoint(mlp) if case.remat == "expert_mlp" else mlp

    def routed(x: Any, expert: Any, share: Any, w_in: Any, w_out: Any) -> Any:
        order = expert if isinstance(expert, Sorted) else order_of(case, expert, share)
        return together(mlp(stages["pack"](x, order), w_in, w_out, share, order), share, order)

    return routed


def _padded(case: Case) -> Callable[..., Any]:
    """Return a layer in which each expert has a buffer for as many rows as it accepts, and computes all of it."""
    room = case.per_expert

    def routed(x: Any, expert: Any, share: Any, w_in: Any, w_out: Any) -> Any:
        order = order_of(case, expert, share)
        first = jnp.cumsum(order.counts) - order.counts
        row = first[:, None] + jnp.arange(room)
        used = jnp.arange(room) < order.counts[:, None]
        token = order.token[jnp.minimum(row, order.token.size - 1)]
        rows = jnp.where(used[..., None], x[token], 0)
        out = jnp.einsum("eci,eid->ecd", silu_gate(jnp.einsum("ecd,edf->ecf", rows, w_in)), w_out)
        weight = jnp.where(used, _by_row(share, order)[jnp.minimum(row, order.token.size - 1)], 0.0)
        zeros = jnp.zeros(x.shape, jnp.float32)
        return zeros.at[token].add(out.astype(jnp.float32) * weight[..., None]).astype(x.dtype)

    return routed
