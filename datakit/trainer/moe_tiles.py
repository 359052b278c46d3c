"""Experts as a loop over tiles of rows: each tile is one expert's, so each step is a few small dense products.

What it costs: every expert's rows are padded to whole tiles (half a tile an expert on average), and an expert's weights
are copied once per tile. In exchange nothing is computed for experts that a token did not choose, and the loop ends
after the last tile in use. Some tiles go at once, as many as keep the rows between the products within a core's cache:
what stands between the products then pays for waking the other cores. On the CPU this is the fastest form by far.

The backward pass is written out, since the gradient that JAX derives for a loop would add a whole weight-sized zero
array per tile. The weights' gradients accumulate in fp32, in place, tile by tile in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from datakit.trainer.moe_sort import Sorted, by_row, combine, sort_by_expert, sum_rows
from datakit.trainer.shapes import Array, Float, Int

LARGEST_TILE = 256
SMALLEST_TILE = 16
MIDDLE_BYTES = 1 << 20  # of the tiles that go at once: a core's cache
TILES_AT_ONCE = 8  # at the most


class Tiles(NamedTuple):
    """Sorted assignments with each expert's rows padded to whole tiles."""

    order: Sorted
    expert: Int[Array, " N"]  # of each tile
    used: Int[Array, ""]  # tiles that hold any row


def tile_rows(assignments: int, experts: int) -> int:
    """Rows of a tile: about a quarter of an expert's even share, so that padding stays near an eighth."""
    size = SMALLEST_TILE
    while size < LARGEST_TILE and 4 * 2 * size * experts <= assignments:
        size *= 2
    return size


def at_once(tile: int, width_bytes: int) -> int:
    """Tiles of one turn of the loop, whose rows between the products have `width_bytes` each."""
    return min(TILES_AT_ONCE, max(1, MIDDLE_BYTES // (tile * width_bytes)))


def lay_tiles(expert: Int[Array, "T K"], experts: int, tile: int, together: int = 1) -> Tiles:
    """Which tile holds which rows; the number of tiles is a multiple of the `together` that go at once."""
    dense = sort_by_expert(expert, experts)
    tiles = -(-dense.counts // tile)
    ends = jnp.cumsum(tiles)
    gap = (ends - tiles) * tile - (jnp.cumsum(dense.counts) - dense.counts)  # rows of padding before an expert's first
    row = dense.row + gap[expert]
    most = -(-(expert.size // tile + experts) // together) * together
    slots = jnp.zeros(most * tile, jnp.int32)
    token = slots.at[row.reshape(-1)].set(
        jnp.arange(expert.size, dtype=jnp.int32) // expert.shape[1], unique_indices=True
    )
    before = jnp.sum(ends <= jnp.arange(most)[:, None], axis=1, dtype=jnp.int32)  # experts whose tiles are over
    return Tiles(Sorted(token, row, dense.counts), jnp.minimum(before, experts - 1), ends[-1])


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
    together = at_once(tile, w_in.shape[-1] * w_in.dtype.itemsize)
    tiles = lay_tiles(expert, experts, tile, together)
    return _tiled(x, share, w_in, w_out, tiles, gate, tile, together, saved_name)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7, 8))
def _tiled(
    x: Any, share: Any, w_in: Any, w_out: Any, tiles: Tiles, gate: Any, tile: int, together: int, saved_name: str
) -> Any:
    return _tiled_forward(x, share, w_in, w_out, tiles, gate, tile, together, saved_name)[0]


def _tiled_forward(
    x: Any, share: Any, w_in: Any, w_out: Any, tiles: Tiles, gate: Any, tile: int, together: int, saved_name: str
) -> tuple[Any, Any]:
    rows = tiles.order.token.size

    def turn(index: Any, buffers: tuple[Any, Any]) -> tuple[Any, Any]:
        take, put = _moves(index, together, tile)
        expert = jax.lax.dynamic_slice(tiles.expert, (index * together,), (together,))
        middle = jnp.einsum("ntd,ndf->ntf", x[take(tiles.order.token)], w_in[expert])
        out = jnp.einsum("nti,nid->ntd", gate(middle), w_out[expert])
        return put(buffers[0], middle), put(buffers[1], out)

    empty = (jnp.zeros((rows, w_in.shape[-1]), x.dtype), jnp.zeros((rows, x.shape[-1]), x.dtype))
    middle_rows, out_rows = jax.lax.fori_loop(0, -(-tiles.used // together), turn, empty)
    middle_rows = checkpoint_name(middle_rows, saved_name)
    return combine(out_rows, share, tiles.order), (x, share, w_in, w_out, tiles, middle_rows)


def _tiled_backward(
    gate: Any, tile: int, together: int, saved_name: str, saved: Any, cotangent: Any
) -> tuple[Any, ...]:
    x, share, w_in, w_out, tiles, middle_rows = saved
    rows = tiles.order.token.size
    share_rows = by_row(share, tiles.order)

    def turn(index: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        to_x, to_share, to_in, to_out = sums
        take, put = _moves(index, together, tile)
        expert = jax.lax.dynamic_slice(tiles.expert, (index * together,), (together,))
        token, weight = take(tiles.order.token), take(share_rows)[..., None].astype(x.dtype)
        arrived = cotangent[token]
        gated, gate_backward = jax.vjp(gate, take(middle_rows))
        to_gated = jnp.einsum("ntd,nid->nti", arrived, w_out[expert])
        (to_middle,) = gate_backward(to_gated * weight)
        share_part = jnp.sum((gated * to_gated).astype(jnp.float32), axis=-1)
        exact = {"preferred_element_type": jnp.float32}
        out_part = jnp.einsum("nti,ntd->nid", gated * weight, arrived, **exact)
        in_part = jnp.einsum("ntd,ntf->ndf", x[token], to_middle, **exact)
        return (
            put(to_x, jnp.einsum("ntf,ndf->ntd", to_middle, w_in[expert])),
            put(to_share, share_part),
            _add_in_order(to_in, expert, in_part),
            _add_in_order(to_out, expert, out_part),
        )

    zeros = (
        jnp.zeros((rows, x.shape[-1]), x.dtype),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(w_in.shape, jnp.float32),
        jnp.zeros(w_out.shape, jnp.float32),
    )
    to_x, to_share, to_in, to_out = jax.lax.fori_loop(0, -(-tiles.used // together), turn, zeros)
    return (
        sum_rows(to_x, tiles.order),
        to_share[tiles.order.row].astype(share.dtype),
        to_in.astype(w_in.dtype),
        to_out.astype(w_out.dtype),
        None,
    )


def _moves(index: Any, together: int, tile: int) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    """How turn `index` reads its rows, [R, ...] -> [N, tile, ...], and writes them."""
    start, rows = index * together * tile, together * tile

    def take(values: Any) -> Any:
        return jax.lax.dynamic_slice_in_dim(values, start, rows).reshape(together, tile, *values.shape[1:])

    def put(values: Any, part: Any) -> Any:
        return jax.lax.dynamic_update_slice_in_dim(values, part.reshape(rows, *values.shape[1:]), start, 0)

    return take, put


def _add_in_order(sums: Any, expert: Any, parts: Any) -> Any:
    """Each tile's part onto its expert's sum, one after the other: in place, and in one order of summation."""
    for number, part in enumerate(parts):
        at = expert[number]
        sums = jax.lax.dynamic_update_index_in_dim(sums, jax.lax.dynamic_index_in_dim(sums, at, 0, False) + part, at, 0)
    return sums


_tiled.defvjp(_tiled_forward, _tiled_backward)
