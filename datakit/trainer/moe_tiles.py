"""Experts as a loop over tiles of rows: each tile is one expert's, so each step is two small dense products.

What it costs: every expert's rows are padded to whole tiles (half a tile an expert on average); an expert's weights are
read once per tile. In exchange nothing is computed for experts that a token did not choose, and the loop ends after the
last tile in use. On the CPU this is the fastest form by far; the backward pass is written out, since the gradient that
JAX derives for a loop would add a whole weight-sized zero array per tile.

The weights' gradients accumulate in fp32, in place, tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from datakit.trainer.moe_sort import Sorted, by_row, sort_by_expert, sum_rows
from datakit.trainer.shapes import Array, Float, Int

LARGEST_TILE = 256
SMALLEST_TILE = 16


class Tiles(NamedTuple):
    """Sorted assignments with each expert's rows padded to whole tiles."""

    order: Sorted
    expert: Int[Array, " N"]  # of each tile
    used: Int[Array, ""]  # tiles that hold any row


def tile_rows(assignments: int, experts: int) -> int:
    """Rows of a tile: about half of an expert's even share, so that padding stays near a quarter at worst."""
    size = SMALLEST_TILE
    while size < LARGEST_TILE and 4 * size * experts <= assignments:
        size *= 2
    return size


def lay_tiles(expert: Int[Array, "T K"], experts: int, tile: int) -> Tiles:
    """Which tile holds which rows."""
    dense = sort_by_expert(expert, experts)
    tiles = -(-dense.counts // tile)
    ends = jnp.cumsum(tiles)
    gap = (ends - tiles) * tile - (jnp.cumsum(dense.counts) - dense.counts)  # rows of padding before an expert's first
    row = dense.row + gap[expert]
    most = expert.size // tile + experts
    slots = jnp.zeros(most * tile, jnp.int32)
    token = slots.at[row.reshape(-1)].set(
        jnp.arange(expert.size, dtype=jnp.int32) // expert.shape[1], unique_indices=True
    )
    owner = jnp.minimum(jnp.searchsorted(ends, jnp.arange(most), side="right"), experts - 1)
    return Tiles(Sorted(token, row, dense.counts), owner, ends[-1])


def tiled_experts(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    gate: Callable[[Any], Any],
    saved_name: str,
) -> Float[Array, "T D"]:
    """See `moe.experts`. The rows between the two products are kept for the backward pass under `saved_name`."""
    experts = w_in.shape[0]
    tile = tile_rows(expert.size, experts)
    return _tiled(x, share, w_in, w_out, lay_tiles(expert, experts, tile), gate, tile, saved_name)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _tiled(x: Any, share: Any, w_in: Any, w_out: Any, tiles: Tiles, gate: Any, tile: int, saved_name: str) -> Any:
    return _tiled_forward(x, share, w_in, w_out, tiles, gate, tile, saved_name)[0]


def _tiled_forward(
    x: Any, share: Any, w_in: Any, w_out: Any, tiles: Tiles, gate: Any, tile: int, saved_name: str
) -> tuple[Any, Any]:
    rows = tiles.order.token.size

    def one(index: Any, buffers: tuple[Any, Any]) -> tuple[Any, Any]:
        middle_rows, out_rows = buffers
        start, expert = index * tile, tiles.expert[index]
        token = jax.lax.dynamic_slice(tiles.order.token, (start,), (tile,))
        middle = x[token] @ w_in[expert]
        out = gate(middle) @ w_out[expert]
        return (
            jax.lax.dynamic_update_slice(middle_rows, middle, (start, 0)),
            jax.lax.dynamic_update_slice(out_rows, out, (start, 0)),
        )

    empty = (jnp.zeros((rows, w_in.shape[-1]), x.dtype), jnp.zeros((rows, x.shape[-1]), x.dtype))
    middle_rows, out_rows = jax.lax.fori_loop(0, tiles.used, one, empty)
    middle_rows = checkpoint_name(middle_rows, saved_name)
    chosen = out_rows[tiles.order.row].astype(jnp.float32)
    y = jnp.einsum("tkd,tk->td", chosen, share).astype(x.dtype)
    return y, (x, share, w_in, w_out, tiles, middle_rows)


def _tiled_backward(gate: Any, tile: int, saved_name: str, saved: Any, cotangent: Any) -> tuple[Any, ...]:
    x, share, w_in, w_out, tiles, middle_rows = saved
    share_rows = by_row(share, tiles.order)

    def one(index: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        to_x, to_share, to_in, to_out = sums
        start, expert = index * tile, tiles.expert[index]
        token = jax.lax.dynamic_slice(tiles.order.token, (start,), (tile,))
        weight = jax.lax.dynamic_slice(share_rows, (start,), (tile,))[:, None].astype(x.dtype)
        middle = jax.lax.dynamic_slice(middle_rows, (start, 0), (tile, middle_rows.shape[1]))
        arrived = cotangent[token]
        gated, gate_backward = jax.vjp(gate, middle)
        to_gated = arrived @ w_out[expert].T
        (to_middle,) = gate_backward(to_gated * weight)
        share_part = jnp.sum((gated * to_gated).astype(jnp.float32), axis=-1)
        out_part = jnp.dot((gated * weight).T, arrived, preferred_element_type=jnp.float32)
        in_part = jnp.dot(x[token].T, to_middle, preferred_element_type=jnp.float32)
        return (
            jax.lax.dynamic_update_slice(to_x, to_middle @ w_in[expert].T, (start, 0)),
            jax.lax.dynamic_update_slice(to_share, share_part, (start,)),
            to_in.at[expert].add(in_part),
            to_out.at[expert].add(out_part),
        )

    rows = tiles.order.token.size
    zeros = (
        jnp.zeros((rows, x.shape[-1]), x.dtype),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(w_in.shape, jnp.float32),
        jnp.zeros(w_out.shape, jnp.float32),
    )
    to_x, to_share, to_in, to_out = jax.lax.fori_loop(0, tiles.used, one, zeros)
    return (
        sum_rows(to_x, tiles.order),
        to_share[tiles.order.row].astype(share.dtype),
        to_in.astype(w_in.dtype),
        to_out.astype(w_out.dtype),
        None,
    )


_tiled.defvjp(_tiled_forward, _tiled_backward)
