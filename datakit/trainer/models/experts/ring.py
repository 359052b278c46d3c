"""Exchanges tokens by a ring: every device of the expert axis gathers the tokens of all of them, computes its own
experts, and the partial sums are added and scattered back.

Per device and layer, this receives (EP - 1) / EP * G rows and sends as many, where G is the number of tokens on the
expert axis, however many experts a token has. That is less than an all-to-all needs if nothing may be dropped, or if
K * capacity_factor is at least EP. Partial sums are sent in fp32, so that a token's experts are added before rounding.

With an expert axis of size 1, nothing is sent; a model with a capacity uses this on one device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from datakit.trainer.models.collectives import gather, scatter_sum
from datakit.trainer.models.experts.capacity import AXIS, Limit
from datakit.trainer.models.experts.exchange import Compute, collect, dispatch, fill, run_experts
from datakit.trainer.models.experts.expert_sort import sort_by_expert
from datakit.trainer.models.shapes import Array, Float, Int


def ring(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    compute: Compute,
    parts: int,
    limit: Limit | None,
) -> Float[Array, "T D"]:
    """Compute the experts of this device's tokens, on one device of an expert axis of `parts` devices. The ids in
    `expert` count the experts of all devices, and `w_in`, `w_out` are this device's own.
    """
    own, choices = w_in.shape[0], expert.shape[1]
    most = x.shape[0] * parts * min(choices, own)
    rows = most if limit is None else min(most, limit.bound(x.shape[0], parts) * parts)
    first = 0
    if parts > 1:
        first = own * jax.lax.axis_index(AXIS)
        x, share = gather(x, AXIS, 0), gather(share, AXIS, 0)
        expert = jax.lax.all_gather(expert, AXIS, tiled=True)
    here = (expert >= first) & (expert < first + own)
    local = jnp.where(here, expert - first, own)
    slots = fill(sort_by_expert(local, own).row, here, local, rows, own)
    y = run_experts(dispatch(x, slots), slots.expert, w_in, w_out, compute)
    y = collect(y, share, slots)
    return scatter_sum(y, AXIS, 0, x.dtype) if parts > 1 else y.astype(x.dtype)
