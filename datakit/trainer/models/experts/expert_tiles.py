"""Computes the experts in a loop over tiles of rows, decides how large a tile is and how many tiles a turn of the loop
processes, and defines the gradient.

A *tile* is a fixed number of rows that belong to one expert. A *turn* is one iteration of the loop: it processes one or
more tiles with a few small dense products. An expert's rows are padded to whole tiles (by half a tile on average), and
its weights are copied once per turn. In exchange, nothing is computed for experts that a token did not choose, and the
loop ends after the last tile in use. The rows of a tile pass through two products: with the input weights and with the
output weights. The number of tiles per turn is the largest, up to 4, for which the rows between the two products fit in
one core's cache. With several tiles per turn, the other cores have work too. On a CPU, the backend `tiles` is by far
the fastest.

In most turns, all tiles belong to one expert. Those turns come first, and each of their products covers all rows of the
turn. The remaining tiles of each expert follow, with one product per tile. In a small layer, such a product keeps only
one core busy: XLA:CPU divides a product only along its rows, and one tile has too few rows to be divided.

The backward pass is written by hand because the gradient that JAX derives for a loop would add a weight-sized array of
zeros per tile. Weight gradients accumulate in fp32, in place, one product at a time and in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from datakit.trainer.models.experts.expert_sort import Sorted, by_row, combine, sort_by_expert, sum_rows
from datakit.trainer.models.layers import stored_transposed
from datakit.trainer.models.shapes import Array, Float, Int

LARGEST_TILE = 256
SMALLEST_TILE = 16
MIDDLE_BYTES = 1 << 20  # limit on the size of one turn's rows between the two products; they must fit in a core's cache
TILES_AT_ONCE = 4  # maximum number of tiles per turn; with 8, few experts of a small layer fill a turn of their own


class Tiles(NamedTuple):
    """Sorted assignments, padded so that each expert has whole tiles; the tiles of single-expert turns come first."""

    order: Sorted
    expert: Int[Array, " N"]  # the expert of each tile
    used: Int[Array, ""]  # number of tiles that hold assignments
    alone: Int[Array, ""]  # number of turns with a single expert


def tile_rows(assignments: int, experts: int) -> int:
    """Return the number of rows per tile, between `SMALLEST_TILE` and `LARGEST_TILE`. Except at the lower
    limit, this is at most a quarter of the mean number of assignments per expert, so padding adds at most an eighth on
    average.
    """
    size = SMALLEST_TILE
    while size < LARGEST_TILE and 4 * 2 * size * experts <= assignments:
        size *= 2
    return size


def at_once(tile: int, width_bytes: int) -> int:
    """Return the number of tiles per turn if a row between the two products takes `width_bytes` bytes."""
    return min(TILES_AT_ONCE, max(1, MIDDLE_BYTES // (tile * width_bytes)))


def lay_tiles(expert: Int[Array, "T K"], experts: int, tile: int, together: int = 1) -> Tiles:
    """Assign rows to tiles. The number of tiles allocated is a multiple of `together`, the number of tiles per turn."""
    dense = sort_by_expert(expert, experts)
    tiles = -(-dense.counts // tile)
    alone = tiles - tiles % together
    ends = jnp.cumsum(alone)
    rest_ends = ends[-1] + jnp.cumsum(tiles - alone)
    first = jnp.cumsum(dense.counts) - dense.counts
    to_alone, to_rest = tile * (ends - alone) - first, tile * (rest_ends - tiles) - first
    row = dense.row + jnp.where(dense.row < (first + tile * alone)[expert], to_alone[expert], to_rest[expert])
    most = -(-(expert.size // tile + experts) // together) * together
    slots = jnp.zeros(most * tile, jnp.int32)
    token = slots.at[row.reshape(-1)].set(
        jnp.arange(expert.size, dtype=jnp.int32) // expert.shape[1], unique_indices=True
    )
    holder = _holder(ends, rest_ends, most)
    return Tiles(Sorted(token, row, dense.counts), holder, rest_ends[-1], ends[-1] // together)


def _holder(ends: Int[Array, " E"], rest_ends: Int[Array, " E"], most: int) -> Int[Array, " N"]:
    """Return each tile's expert. An expert's tiles end at `ends` in single-expert turns, at `rest_ends` in others."""
    number = jnp.arange(most)[:, None]
    over = jnp.where(number < ends[-1], ends <= number, rest_ends <= number)
    return jnp.minimum(jnp.sum(over, axis=1, dtype=jnp.int32), ends.size - 1)


class Turn(NamedTuple):
    """The rows of one turn of the loop, which all belong to one expert or form tiles of several experts."""

    expert: Int[Array, "*n"]
    start: Int[Array, ""]
    shape: tuple[int, ...]  # shape of the turn's rows: (rows,) or (tiles, rows per tile)

    def take(self, values: Any) -> Any:
        """Return this turn's rows of `values`, in the shape [*shape, ...]."""
        rows = jax.lax.dynamic_slice_in_dim(values, self.start, math.prod(self.shape))
        return rows.reshape(*self.shape, *values.shape[1:])

    def take_halves(self, values: Any) -> Any:
        """Return what `take` returns, but slice the left and the right half of each row separately. XLA:CPU does not
        vectorize a loop that reads both halves of one slice; such a loop is 5 times slower.
        """
        rows, width = math.prod(self.shape), values.shape[1] // 2
        at = ((self.start, column) for column in (0, width))
        halves = [jax.lax.dynamic_slice(values, start, (rows, width)).reshape(*self.shape, width) for start in at]
        return jnp.concatenate(halves, axis=-1)

    def put(self, values: Any, part: Any) -> Any:
        """Return `values` with this turn's rows replaced by `part`."""
        rows = part.reshape(-1, *values.shape[1:])
        return jax.lax.dynamic_update_slice_in_dim(values, rows, self.start, 0)


def _each_turn(do: Callable[[Turn, Any], Any], tiles: Tiles, together: int, tile: int, carry: Any) -> Any:
    """Pass `carry` through `do` for every turn: first the turns with one expert, then those with several."""
    rows = together * tile

    def alone(index: Any, carry: Any) -> Any:
        return do(Turn(tiles.expert[index * together], index * rows, (rows,)), carry)

    def several(index: Any, carry: Any) -> Any:
        expert = jax.lax.dynamic_slice_in_dim(tiles.expert, index * together, together)
        return do(Turn(expert, index * rows, (together, tile)), carry)

    carry = jax.lax.fori_loop(0, tiles.alone, alone, carry)
    return carry if together == 1 else jax.lax.fori_loop(tiles.alone, -(-tiles.used // together), several, carry)


def tiled_experts(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    gate: Callable[[Any], Any],
    saved_name: str,
) -> Float[Array, "T D"]:
    """Compute what `experts.experts` returns. `saved_name` is the name by which remat policies refer to the rows
    between the products.
    """
    experts = w_in.shape[0]
    tile = tile_rows(expert.size, experts)
    together = at_once(tile, w_in.shape[-1] * w_in.dtype.itemsize)
    tiles = lay_tiles(expert, experts, tile, together)
    return _tiled(x, share, w_in, w_out, tiles, gate, tile, together, saved_name)


def _tiled_forward(
    x: Any, share: Any, w_in: Any, w_out: Any, tiles: Tiles, gate: Any, tile: int, together: int, saved_name: str
) -> tuple[Any, Any]:
    rows = tiles.order.token.size

    def do(turn: Turn, buffers: tuple[Any, Any]) -> tuple[Any, Any]:
        middle = jnp.einsum("...td,...df->...tf", x[turn.take(tiles.order.token)], w_in[turn.expert])
        out = jnp.einsum("...ti,...id->...td", gate(middle), w_out[turn.expert])
        return turn.put(buffers[0], middle), turn.put(buffers[1], out)

    empty = (jnp.zeros((rows, w_in.shape[-1]), x.dtype), jnp.zeros((rows, x.shape[-1]), x.dtype))
    middle_rows, out_rows = _each_turn(do, tiles, together, tile, empty)
    middle_rows = checkpoint_name(middle_rows, saved_name)
    return combine(out_rows, share, tiles.order), (x, share, w_in, w_out, tiles, middle_rows)


def _tiled_backward(
    gate: Any, tile: int, together: int, saved_name: str, saved: Any, cotangent: Any
) -> tuple[Any, ...]:
    x, share, w_in, w_out, tiles, middle_rows = saved
    rows = tiles.order.token.size
    share_rows = by_row(share, tiles.order)

    def do(turn: Turn, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        to_x, to_share, to_in, to_out = sums
        expert, token = turn.expert, turn.take(tiles.order.token)
        arrived, weight = cotangent[token], turn.take(share_rows)[..., None].astype(x.dtype)
        gated, gate_backward = jax.vjp(gate, turn.take_halves(middle_rows))
        to_gated = jnp.einsum("...td,...id->...ti", arrived, w_out[expert])
        (to_middle,) = gate_backward(to_gated * weight)
        share_part = jnp.sum((gated * to_gated).astype(jnp.float32), axis=-1)
        exact = {"preferred_element_type": jnp.float32}
        out_part = jnp.einsum("...it,...td->...id", stored_transposed(gated * weight), arrived, **exact)
        in_part = jnp.einsum("...dt,...tf->...df", stored_transposed(x[token]), to_middle, **exact)
        to_x = turn.put(to_x, jnp.einsum("...tf,...df->...td", to_middle, w_in[expert]))
        to_in, to_out = _add_in_order(to_in, expert, in_part), _add_in_order(to_out, expert, out_part)
        return to_x, turn.put(to_share, share_part), to_in, to_out

    sums = (jnp.zeros(shape, jnp.float32) for shape in (rows, w_in.shape, w_out.shape))
    carry = (jnp.zeros((rows, x.shape[-1]), x.dtype), *sums)
    to_x, to_share, to_in, to_out = _each_turn(do, tiles, together, tile, carry)
    to_weights = to_in.astype(w_in.dtype), to_out.astype(w_out.dtype)
    return sum_rows(to_x, tiles.order), to_share[tiles.order.row].astype(share.dtype), *to_weights, None


def _add_in_order(sums: Any, expert: Any, parts: Any) -> Any:
    """Add each product in `parts` to the sum of its expert, one at a time, in place and in a fixed order."""
    for at, part in zip(expert.reshape(-1), parts.reshape(-1, *sums.shape[1:]), strict=True):
        sums = jax.lax.dynamic_update_index_in_dim(sums, jax.lax.dynamic_index_in_dim(sums, at, 0, False) + part, at, 0)
    return sums


_tiled = jax.custom_vjp(lambda *inputs: _tiled_forward(*inputs)[0], nondiff_argnums=(5, 6, 7, 8))
_tiled.defvjp(_tiled_forward, _tiled_backward)
