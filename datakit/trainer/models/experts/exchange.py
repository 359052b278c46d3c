"""Copies tokens to the slots of a buffer, runs the experts of one device on them, and sums each token's slots. Both
exchanges of expert parallelism are built from these steps.

A slot holds one assignment. An assignment without a slot is absent: it was dropped, or another device computes it.
Slots without an assignment have the expert `experts` (nobody); the backends count only real experts, so that no product
is computed for empty slots. The gradients use gathers instead of scatter-adds, as in `expert_sort.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from datakit.trainer.models.shapes import Array, Bool, Float, Int

SAVED_NAME = "moe_rows"  # name of the arrays that the remat policy "save_moe" keeps
Compute = Callable[..., Any]  # a backend: (x, expert, share, w_in, w_out) -> y


class Slots(NamedTuple):
    """The slots of a buffer of R rows."""

    token: Int[Array, " R"]  # the token of each slot; 0 in empty slots
    expert: Int[Array, " R"]  # the expert of each slot among those of the device that computes it
    slot: Int[Array, "T K"]  # the slot of each assignment; at least R if it has none


def fill(
    slot: Int[Array, "T K"], present: Bool[Array, "T K"], expert: Int[Array, "T K"], rows: int, nobody: int
) -> Slots:
    """Return a buffer of `rows` slots that holds the assignments in `present`, whose slots must be distinct. The expert
    of empty slots is `nobody`.
    """
    number = jnp.arange(slot.size, dtype=jnp.int32).reshape(slot.shape)
    slot = jnp.where(present, slot, rows + number)  # distinct too, so that no two indices of the scatters are equal
    put = {"mode": "drop", "unique_indices": True}
    token = jnp.zeros(rows, jnp.int32).at[slot.reshape(-1)].set((number // slot.shape[1]).reshape(-1), **put)
    experts = jnp.full(rows, nobody, jnp.int32).at[slot.reshape(-1)].set(expert.reshape(-1), **put)
    return Slots(token, experts, slot)


def run_experts(
    rows: Float[Array, "R D"],
    expert: Int[Array, " R"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    compute: Compute,
) -> Float[Array, "R D"]:
    """Return each row's output of its expert. The results of rows that belong to no expert are arbitrary."""
    rows = checkpoint_name(rows, SAVED_NAME)
    live = (expert < w_in.shape[0]).astype(jnp.float32)
    return compute(rows, expert[:, None], live[:, None], w_in, w_out)


@jax.custom_vjp
def dispatch(x: Float[Array, "T D"], slots: Slots) -> Float[Array, "R D"]:
    """Copy each token to the slots of its assignments."""
    return x[slots.token]


def _dispatch_backward(slots: Slots, cotangent: Any) -> tuple[Any, None]:
    return reduce(add, _chosen(cotangent, slots)).astype(cotangent.dtype), None


dispatch.defvjp(lambda x, slots: (dispatch(x, slots), slots), _dispatch_backward)


@jax.custom_vjp
def collect(rows: Float[Array, "R D"], share: Float[Array, "T K"], slots: Slots) -> Float[Array, "T D"]:
    """Return the weighted sum of each token's slots, in fp32. Absent assignments add nothing."""
    weighted = (row * weight[:, None] for row, weight in zip(_chosen(rows, slots), share.T, strict=True))
    return reduce(add, weighted).astype(jnp.float32)


def _collect_forward(rows: Any, share: Any, slots: Slots) -> tuple[Any, Any]:
    return collect(rows, share, slots), (rows, share, slots)


def _collect_backward(saved: tuple[Any, Any, Slots], cotangent: Any) -> tuple[Any, Any, None]:
    rows, share, slots = saved
    by_slot = jnp.zeros(slots.token.shape, share.dtype)
    by_slot = by_slot.at[slots.slot.reshape(-1)].set(share.reshape(-1), mode="drop", unique_indices=True)
    to_rows = (cotangent[slots.token] * by_slot[:, None]).astype(rows.dtype)
    to_share = [jnp.sum(row * cotangent, axis=-1) for row in _chosen(rows, slots)]
    return to_rows, jnp.stack(to_share, axis=-1).astype(share.dtype), None


collect.defvjp(_collect_forward, _collect_backward)


def _chosen(rows: Any, slots: Slots) -> list[Any]:
    """Return one fp32 array [T, D] per choice: the rows of the choices' slots, zero where an assignment is absent."""
    return [rows.at[slot].get(mode="fill", fill_value=0).astype(jnp.float32) for slot in slots.slot.T]
