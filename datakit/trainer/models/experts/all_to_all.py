"""Exchanges tokens by an all-to-all: a device sends each assignment to the device of its expert, and gets the result
back.

`all_to_all` works on every platform. Its buffers have a fixed size: C slots from each device to each other one, where C
is the most that the capacity admits. Per device and layer, (EP - 1) * C rows are sent each way. Without a capacity, C
is the worst case, T * min(K, experts of a device), which is more than a ring needs.

`ragged_all_to_all` sends only the assignments that there are, and needs no padding on the way. The compilers for TPUs
and GPUs have it; that for CPUs does not. Its receive buffer still has to hold the worst case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from datakit.trainer.models.experts.capacity import AXIS, Limit
from datakit.trainer.models.experts.exchange import Compute, collect, dispatch, fill, run_experts
from datakit.trainer.models.experts.expert_sort import sort_by_expert
from datakit.trainer.models.shapes import Array, Float, Int


def all_to_all(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    compute: Compute,
    parts: int,
    limit: Limit | None,
) -> Float[Array, "T D"]:
    """Compute what `ring.ring` returns."""
    own = w_in.shape[0]
    most = x.shape[0] * min(expert.shape[1], own)
    slots_each = most if limit is None else min(most, limit.bound(x.shape[0], parts))
    order = sort_by_expert(expert, parts * own)
    counts = order.counts.reshape(parts, own).sum(axis=1)
    first, to = jnp.cumsum(counts) - counts, expert // own
    slot = to * slots_each + order.row - first[to]
    slots = fill(slot, expert < parts * own, expert % own, parts * slots_each, own)
    swap = lambda array: jax.lax.all_to_all(array, AXIS, 0, 0, tiled=True)  # noqa: E731
    y = run_experts(swap(dispatch(x, slots)), swap(slots.expert), w_in, w_out, compute)
    return collect(swap(y), share, slots).astype(x.dtype)


def ragged_all_to_all(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    compute: Compute,
    parts: int,
    limit: Limit | None,
) -> Float[Array, "T D"]:
    """Compute what `ring.ring` returns."""
    own = w_in.shape[0]
    most = x.shape[0] * min(expert.shape[1], own)
    received = parts * (most if limit is None else min(most, limit.bound(x.shape[0], parts)))
    order = sort_by_expert(expert, parts * own)
    present = expert < parts * own
    slots = fill(order.row, present, expert % own, expert.size, own)
    sizes = _sizes(order.counts.reshape(parts, own).sum(axis=1))
    rows = sizes.send(dispatch(x, slots), jnp.zeros((received, x.shape[1]), x.dtype))
    experts = sizes.send(slots.expert, jnp.full(received, own, jnp.int32))
    y = sizes.send_back(run_experts(rows, experts, w_in, w_out, compute), jnp.zeros((expert.size, x.shape[1]), x.dtype))
    return collect(y, share, slots).astype(x.dtype)


class _Sizes(NamedTuple):
    """The numbers of rows that each device sends to each other one, and this device's place among them."""

    rows: Int[Array, "P P"]  # [from, to]
    me: Int[Array, ""]

    def send(self, rows: Any, output: Any) -> Any:
        """Send each device its part of `rows`, which are ordered by device; return `output` with the received rows,
        ordered by sender, at its start.
        """
        earlier = jnp.cumsum(self.rows, axis=0) - self.rows
        return _exchanged(rows, output, self.rows[self.me], earlier[self.me], self.rows[:, self.me])

    def send_back(self, rows: Any, output: Any) -> Any:
        """Return the rows received by `send` to where they came from."""
        before = jnp.cumsum(self.rows, axis=1) - self.rows
        return _exchanged(rows, output, self.rows[:, self.me], before[:, self.me], self.rows[self.me])


def _sizes(to: Int[Array, " P"]) -> _Sizes:
    return _Sizes(jax.lax.all_gather(to, AXIS), jax.lax.axis_index(AXIS))


def _exchanged(rows: Any, output: Any, sent: Any, placed_at: Any, received: Any) -> Any:
    starts = jnp.cumsum(sent) - sent
    return jax.lax.ragged_all_to_all(rows, output, starts, sent, placed_at, received, axis_name=AXIS)
