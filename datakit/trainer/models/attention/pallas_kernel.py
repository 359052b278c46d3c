"""Computes attention on an NVIDIA GPU with Triton kernels, written in Pallas: one for the forward pass, two for the
gradients (of the query, and of key and value).

The method is that of `blocked.py` (FlashAttention-2: Dao 2023), with one kernel instance per block of queries, head and
row of the batch. An instance reads only the keys from the first one that its queries see. The kernel for keys reads
only the queries that see its block, and adds up the query heads that share a key head. So nothing is computed for
blocks that the window or the documents mask, and the gradients need no atomic additions: the order of every sum is
fixed.

Products take inputs of the given type and add in fp32. Memory grows with S. Head widths are padded to powers of two,
which Triton requires. On a CPU, the kernels are interpreted, which is only fast enough for tests. Block sizes follow
common practice for head widths of 64 and 128; they have not been measured on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from datakit.trainer.models.attention.blocked import MASKED
from datakit.trainer.models.shapes import Array, Float, Int

BLOCK = 64  # queries and keys per block
SMALLEST_WIDTH = 16  # Triton multiplies matrices of at least 16 x 16
LOG2E = math.log2(math.e)


def pallas_attention(
    query: Float[Array, "B S N H"],
    key: Float[Array, "B S M H"],
    value: Float[Array, "B S M H"],
    first: Int[Array, "B S"],
) -> Float[Array, "B S N H"]:
    """Compute what `attention.attention` returns."""
    _, length, _, width = query.shape
    missing, wider = -length % BLOCK, max(SMALLEST_WIDTH, pl.next_power_of_2(width)) - width
    padded = (jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, wider))) for x in (query, key, value))
    # An appended position sees itself only, and no real position sees it.
    first = jnp.concatenate([first, jnp.broadcast_to(jnp.arange(length, length + missing), (len(first), missing))], 1)
    return _pallas(*padded, first.astype(jnp.int32), width**-0.5)[:, :length, :, :width]


def _run(kernel: Callable[..., None], name: str, grid: tuple[int, ...], inputs: Any, in_specs: Any, out: Any) -> Any:
    """Run a kernel on a grid; `out` holds (shape, block specification) of each result."""
    shapes, specs = zip(*out, strict=True)
    call = partial(pl.pallas_call, kernel, grid=grid, in_specs=in_specs, out_specs=specs, out_shape=shapes, name=name)
    warps = 4 if inputs[0].shape[-1] <= 64 else 8
    compiled = call(compiler_params=triton.CompilerParams(num_warps=warps, num_stages=2))
    return jax.lax.platform_dependent(*inputs, cpu=call(interpret=True), default=compiled)


def _rows(width: int, heads: int = 1, whole: int | None = None) -> pl.BlockSpec:
    """Select one head's rows of a block, or of the whole sequence, in an array [B, S, heads, H]. `heads` query heads
    share one of the array's heads. The grid is (block, head, row of the batch).
    """
    if whole is None:
        return pl.BlockSpec((None, BLOCK, None, width), lambda i, n, b: (b, i, n // heads, 0))
    return pl.BlockSpec((None, whole, None, width), lambda i, n, b: (b, 0, n // heads, 0))


def _per_position(whole: int | None = None) -> pl.BlockSpec:
    """Select the numbers of one head and block, or of the whole sequence, in an array [B, N, S]."""
    if whole is None:
        return pl.BlockSpec((None, None, BLOCK), lambda i, n, b: (b, n, i))
    return pl.BlockSpec((None, None, whole), lambda i, n, b: (b, n, 0))


def _of_first() -> pl.BlockSpec:
    return pl.BlockSpec((None, BLOCK), lambda i, n, b: (b, i))


def _at(number: Any) -> Any:
    return pl.ds(number * BLOCK, BLOCK)


def _product(left: Any, right: Any, contract: tuple[int, int] = (1, 0)) -> Any:
    """Multiply two matrices with an fp32 sum; fp32 inputs are not rounded to a shorter type."""
    dimensions = ((contract[:1], contract[1:]), ((), ()))
    exact = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jax.lax.dot_general(left, right, dimensions, precision=exact, preferred_element_type=jnp.float32)


def _scores(query: Any, key: Any, first: Any, query_block: Any, key_block: Any, scale: float) -> Any:
    """Return one block of scores in units of log 2, so that exponentials are powers of two."""
    place = jnp.arange(BLOCK)
    key_place, query_place = key_block * BLOCK + place, query_block * BLOCK + place
    seen = (key_place[None, :] <= query_place[:, None]) & (key_place[None, :] >= first[:, None])
    return jnp.where(seen, _product(query, key, (1, 1)) * (scale * LOG2E), MASKED)


def _forward_kernel(query: Any, key: Any, value: Any, first: Any, output: Any, normalizer: Any, scale: float) -> None:
    own, rows, own_first = pl.program_id(0), query[...], first[...]

    def add(at: Any, sums: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        total_output, maximum, total = sums
        scores = _scores(rows, key[_at(at), :], own_first, own, at, scale)
        higher = jnp.maximum(maximum, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp2(scores - higher[:, None]), jnp.exp2(maximum - higher)
        added = _product(weights.astype(rows.dtype), value[_at(at), :])
        return total_output * shrink[:, None] + added, higher, total * shrink + jnp.sum(weights, axis=1)

    zeros = jnp.zeros(BLOCK, jnp.float32)
    start = jnp.min(own_first) // BLOCK
    sums = jax.lax.fori_loop(start, own + 1, add, (jnp.zeros(rows.shape, jnp.float32), zeros + MASKED, zeros))
    output[...] = (sums[0] / sums[2][:, None]).astype(output.dtype)
    normalizer[...] = sums[1] + jnp.log2(sums[2])


def _query_kernel(
    query: Any, key: Any, value: Any, first: Any, arrived: Any, normalizer: Any, along: Any, to_query: Any, scale: float
) -> None:
    own, rows, own_first = pl.program_id(0), query[...], first[...]
    own_arrived, own_normalizer, own_along = arrived[...], normalizer[...], along[...]

    def add(at: Any, total: Any) -> Any:
        keys = key[_at(at), :]
        weights = jnp.exp2(_scores(rows, keys, own_first, own, at, scale) - own_normalizer[:, None])
        to_scores = weights * (_product(own_arrived, value[_at(at), :], (1, 1)) - own_along[:, None])
        return total + _product(to_scores.astype(rows.dtype), keys)

    start = jnp.min(own_first) // BLOCK
    total = jax.lax.fori_loop(start, own + 1, add, jnp.zeros(rows.shape, jnp.float32))
    to_query[...] = (total * scale).astype(to_query.dtype)


def _key_kernel(
    query: Any,
    key: Any,
    value: Any,
    first: Any,
    end: Any,
    arrived: Any,
    normalizer: Any,
    along: Any,
    to_key: Any,
    to_value: Any,
    scale: float,
) -> None:
    own, keys, values = pl.program_id(0), key[...], value[...]

    def of_head(head: Any, sums: tuple[Any, Any]) -> tuple[Any, Any]:
        def add(at: Any, sums: tuple[Any, Any]) -> tuple[Any, Any]:
            rows, rows_arrived = query[_at(at), head, :], arrived[_at(at), head, :]
            scores = _scores(rows, keys, first[_at(at)], at, own, scale)
            weights = jnp.exp2(scores - normalizer[head, _at(at)][:, None])
            to_scores = weights * (_product(rows_arrived, values, (1, 1)) - along[head, _at(at)][:, None])
            added = _product(to_scores.astype(rows.dtype), rows, (0, 0))
            return sums[0] + added, sums[1] + _product(weights.astype(rows.dtype), rows_arrived, (0, 0))

        return jax.lax.fori_loop(own, end[0], add, sums)

    zeros = jnp.zeros(keys.shape, jnp.float32)
    sums = jax.lax.fori_loop(0, query.shape[1], of_head, (zeros, zeros))
    to_key[...] = (sums[0] * scale).astype(to_key.dtype)
    to_value[...] = sums[1].astype(to_value.dtype)


def _forward(query: Any, key: Any, value: Any, first: Any, scale: float) -> tuple[Any, Any]:
    """Return the output, and the base-2 logarithms [B, N, S] of the softmax's denominators."""
    batch, length, heads, width = query.shape
    shared = _rows(width, heads // key.shape[2], length)
    normalizer = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    out = (jax.ShapeDtypeStruct(query.shape, query.dtype), _rows(width)), (normalizer, _per_position())
    specs = [_rows(width), shared, shared, _of_first()]
    grid = (length // BLOCK, heads, batch)
    return _run(partial(_forward_kernel, scale=scale), "attention", grid, (query, key, value, first), specs, out)


def _saving_forward(query: Any, key: Any, value: Any, first: Any, scale: float) -> tuple[Any, Any]:
    output, normalizer = _forward(query, key, value, first, scale)
    return output, (query, key, value, first, output, normalizer)


def _backward(scale: float, saved: Any, arrived: Any) -> tuple[Any, Any, Any, None]:
    query, key, value, first, output, normalizer = saved
    along = jnp.einsum("bsnh,bsnh->bns", output, arrived, preferred_element_type=jnp.float32)
    to_query = _to_query(query, key, value, first, arrived, normalizer, along, scale)
    return to_query, *_to_keys(query, key, value, first, arrived, normalizer, along, scale), None


def _to_query(query: Any, key: Any, value: Any, first: Any, *rest: Any) -> Any:
    *arrays, scale = rest
    batch, length, heads, width = query.shape
    shared = _rows(width, heads // key.shape[2], length)
    specs = [_rows(width), shared, shared, _of_first(), _rows(width), _per_position(), _per_position()]
    out = ((jax.ShapeDtypeStruct(query.shape, query.dtype), _rows(width)),)
    inputs, grid = (query, key, value, first, *arrays), (length // BLOCK, heads, batch)
    return _run(partial(_query_kernel, scale=scale), "attention_to_query", grid, inputs, specs, out)[0]


def _to_keys(query: Any, key: Any, value: Any, first: Any, *rest: Any) -> Any:
    arrived, normalizer, along, scale = rest
    batch, length, heads, width = query.shape
    kv_heads, blocks = key.shape[2], length // BLOCK
    group = heads // kv_heads
    last_of_block = BLOCK * jnp.arange(1, blocks + 1, dtype=jnp.int32) - 1
    # The queries that see a block of keys end before the first query whose `first` is after the block.
    seeing = jnp.sum(first[:, None, :] <= last_of_block[:, None], axis=-1, dtype=jnp.int32)
    end = -(-seeing // BLOCK)
    of_group = pl.BlockSpec((None, length, group, width), lambda i, n, b: (b, 0, n, 0))
    numbers = pl.BlockSpec((None, group, length), lambda i, n, b: (b, n, 0))
    whole, one = pl.BlockSpec((None, length), lambda i, n, b: (b, 0)), pl.BlockSpec((None, 1), lambda i, n, b: (b, i))
    specs = [of_group, _rows(width), _rows(width), whole, one, of_group, numbers, numbers]
    out = tuple((jax.ShapeDtypeStruct(x.shape, x.dtype), _rows(width)) for x in (key, value))
    inputs = query, key, value, first, end, arrived, normalizer, along
    return _run(partial(_key_kernel, scale=scale), "attention_to_keys", (blocks, kv_heads, batch), inputs, specs, out)


_pallas = jax.custom_vjp(lambda *inputs: _forward(*inputs)[0], nondiff_argnums=(4,))
_pallas.defvjp(_saving_forward, _backward)
