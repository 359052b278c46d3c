"""Sorts the assignments of tokens to experts by expert, copies tokens to the sorted rows, and sums each token's rows.
The gradients of `spread` and `combine` are written by hand. They use gathers instead of scatter-adds, so the order of
summation is the same on every device and in every run. A token's rows are gathered one choice at a time. This lets XLA
fuse each gather into the sum, so that no [T, K, D] array is stored.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from datakit.trainer.models.shapes import Array, Float, Int


class Sorted(NamedTuple):
    """The positions of assignments after sorting. Assignment `a` is choice a % K of token a // K."""

    token: Int[Array, " R"]  # the token of each row; arbitrary in padding rows
    row: Int[Array, "T K"]  # the row of each assignment
    counts: Int[Array, " E"]  # number of assignments per expert


def sort_by_expert(expert: Int[Array, "T K"], experts: int) -> Sorted:
    """Sort assignments by expert, stably and without padding, so that each expert receives its tokens in order. The id
    `experts` stands for nobody: such assignments come last and are not counted. Their shares must be zero.
    """
    flat = expert.reshape(-1)
    order = _argsort(flat, experts)
    row = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=jnp.int32), unique_indices=True)
    counts = jnp.sum(flat[:, None] == jnp.arange(experts), axis=0, dtype=jnp.int32)
    return Sorted(order // expert.shape[1], row.reshape(expert.shape), counts)


def _argsort(expert: Int[Array, " A"], experts: int) -> Int[Array, " A"]:
    """Return a stable argsort of `expert`. Packing expert and position into one integer triples the speed on a CPU."""
    size = expert.size
    if (experts + 1) * size > jnp.iinfo(jnp.uint32).max:
        return jnp.argsort(expert, stable=True).astype(jnp.int32)
    place = jnp.arange(size, dtype=jnp.uint32)
    return (jnp.sort(expert.astype(jnp.uint32) * size + place, stable=False) % size).astype(jnp.int32)


def by_row(share: Float[Array, "T K"], order: Sorted) -> Float[Array, " R"]:
    """Arrange the weights of the assignments in row order. Padding rows get the weight zero."""
    flat = jnp.zeros(order.token.shape, share.dtype)
    return flat.at[order.row.reshape(-1)].set(share.reshape(-1), unique_indices=True)


def sum_rows(rows: Float[Array, "R D"], order: Sorted) -> Float[Array, "T D"]:
    """Sum each token's rows in fp32, and return the sums in the type of `rows`."""
    return reduce(add, _chosen(rows, order)).astype(rows.dtype)


def _chosen(rows: Float[Array, "R D"], order: Sorted) -> list[Float[Array, "T D"]]:
    """Return one fp32 array per choice: the rows of all first choices, the rows of all second choices, and so on."""
    return [rows[row].astype(jnp.float32) for row in order.row.T]


@jax.custom_vjp
def spread(x: Float[Array, "T D"], order: Sorted) -> Float[Array, "R D"]:
    """Copy each token to the rows of its assignments."""
    return x[order.token]


def _spread_backward(order: Sorted, cotangent: Any) -> tuple[Any, None]:
    return sum_rows(cotangent, order), None


spread.defvjp(lambda x, order: (spread(x, order), order), _spread_backward)


@jax.custom_vjp
def combine(rows: Float[Array, "R D"], share: Float[Array, "T K"], order: Sorted) -> Float[Array, "T D"]:
    """Return the weighted sum of each token's rows. It is computed in fp32 and returned in the type of `rows`."""
    weighted = (row * weight[:, None] for row, weight in zip(_chosen(rows, order), share.T, strict=True))
    return reduce(add, weighted).astype(rows.dtype)


def _combine_forward(rows: Any, share: Any, order: Sorted) -> tuple[Any, Any]:
    return combine(rows, share, order), (rows, share, order)


def _combine_backward(saved: tuple[Any, Any, Sorted], cotangent: Any) -> tuple[Any, Any, None]:
    rows, share, order = saved
    to_rows = cotangent[order.token] * by_row(share, order)[:, None].astype(cotangent.dtype)
    wide = cotangent.astype(jnp.float32)
    to_share = jnp.stack([jnp.sum(row * wide, axis=-1) for row in _chosen(rows, order)], axis=-1)
    return to_rows, to_share, None


combine.defvjp(_combine_forward, _combine_backward)
