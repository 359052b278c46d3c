"""Limits how many assignments the experts accept, and decides which assignments are dropped if there are more.

    the rule    The batch's sequences form blocks of `capacity_rows` sequences, and the experts form `capacity_groups`
                groups of consecutive experts. A group accepts at most ceil(factor * tokens * K / groups) assignments
                from a block of `tokens` tokens. If there are more, those with the largest shares are kept
                (batch-prioritized routing: Riquelme et al. 2021, section 4.2). Equal shares are ordered by a hash of
                the position and of the groups' numbers of assignments. Padding is not sent to any expert.

So no position is favoured. Blocks and groups are settings, not the parts of a mesh: which assignments are dropped
depends on the batch alone, and is the same for every number of devices and every size of the expert axis. A device
decides for its own blocks without communication. In exchange, the size of the expert axis must divide the number of
groups, and a device must hold whole blocks. The smaller the blocks and groups are, the more is dropped.

A dropped assignment adds nothing to its token's output, and the token's other shares are not scaled up. Since a token
competes with later ones, a model with a capacity is not strictly causal. So assignments are dropped only in training;
evaluation drops none unless asked to.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from datakit.errors import UsageError
from datakit.toml_config import check_idle
from datakit.trainer.models.router import Axes, RouterSums, Routing
from datakit.trainer.models.shapes import Array, Bool, Float, Int, UInt
from datakit.trainer.models.weights import Tree, leaves

AXIS = "expert"  # the mesh axis over which the experts are split
BLOCKS = ("capacity_rows", "capacity_groups")  # the settings that have no effect without a capacity factor
CAPACITY = ("capacity_factor", *BLOCKS)  # all settings of `Capacity`


@dataclass(frozen=True, kw_only=True)  # otherwise, these would be the first positional arguments of a model's Config
class Capacity:
    """A model's settings for dropping assignments. Model configurations inherit them."""

    # Assignments that the experts accept, as a multiple of those they would get if the load were even; None: all
    capacity_factor: float | None = None
    capacity_rows: int = 8  # sequences per block of tokens
    capacity_groups: int = 8  # groups of experts

    def check_capacity(self, experts: int) -> None:
        """Raise UsageError for values out of range. `Run` refuses those without effect."""
        factor, groups = self.capacity_factor, self.capacity_groups
        if factor is not None and not 0 < factor < math.inf:
            raise UsageError(
                f"model.capacity_factor is {factor}; use a positive number such as 1.25, or remove this setting to "
                "drop nothing"
            )
        if self.capacity_rows < 1:
            raise UsageError(f"model.capacity_rows is {self.capacity_rows}; use at least 1")
        if groups < 1 or (factor is not None and experts % groups):
            raise UsageError(f"model.capacity_groups ({groups}) must be a divisor of the number of experts ({experts})")

    def limit(self, length: int, choices: int) -> Limit | None:
        """Return the limit for sequences of `length` tokens with `choices` experts each; None: nothing is dropped."""
        if self.capacity_factor is None:
            return None
        tokens = self.capacity_rows * length
        most = math.ceil(self.capacity_factor * tokens * choices / self.capacity_groups)
        return Limit(tokens, self.capacity_groups, most)


def with_capacity(config: Any, factor: float | None) -> Any:
    """Return a model's configuration with another capacity factor (None: dropless) and the same blocks and groups.
    Raises UsageError if the model cannot have this factor.
    """
    if isinstance(config, Capacity):
        return dataclasses.replace(config, capacity_factor=factor)
    if factor is None:
        return config
    raise UsageError("evaluation.capacity_factors has no effect: the model has no setting capacity_factor")


def capacity_name(factor: float) -> str:
    """Return a capacity factor as it is written in the names of metrics, such as "1.25"."""
    return f"{factor:g}"


def idle_settings(config: Any) -> tuple[str, ...]:
    """Return the names of a model's settings that do not affect training, because the model has no capacity factor.
    They affect only `evaluation.capacity_factors`, so they stay out of the fingerprint, as that setting does.
    """
    return BLOCKS if isinstance(config, Capacity) and config.capacity_factor is None else ()


def check_blocks(config: Any, factors: Sequence[float], rows: int, length: int, devices: int) -> None:
    """Raise UsageError if a model cannot be evaluated with these capacity factors on batches of [rows, length], because
    a device does not hold whole blocks.
    """
    for factor in factors:
        limit = with_capacity(config, factor).limit(length, choices=1)
        limit.bound(rows * length // devices, share=1)


def check_parallel(config: Any, table: Tree, parts: int, evaluation_factors: Sequence[float]) -> None:
    """Raise UsageError for settings of expert parallelism and capacity that do not fit each other or have no effect.
    `table` is the model's table of weights, `parts` the size of the expert axis.
    """
    sizes = [weight.shape[weight.sharding.index(AXIS)] for weight in leaves(table).values() if AXIS in weight.sharding]
    if parts < 1:
        raise UsageError(f"expert_parallel is {parts}; use at least 1")
    if parts > 1 and not sizes:
        raise UsageError(f"expert_parallel = {parts} has no effect: the model has no routed experts; remove it")
    if any(size % parts for size in sizes):
        raise UsageError(f"expert_parallel ({parts}) must be a divisor of the number of experts ({sizes[0]})")
    exchange = getattr(config, "exchange", "auto")
    if parts == 1 and exchange != "auto":
        raise UsageError(f"model.exchange = {exchange!r} has no effect with expert_parallel = 1; remove this setting")
    for factor in evaluation_factors:
        with_capacity(config, factor)
    if not isinstance(config, Capacity):
        return
    if config.capacity_factor is None and not evaluation_factors:
        circumstance = "without model.capacity_factor or evaluation.capacity_factors"
        check_idle("model", config, [dict.fromkeys(BLOCKS, circumstance)])
    elif config.capacity_groups % parts:
        raise UsageError(
            f"expert_parallel ({parts}) must be a divisor of model.capacity_groups ({config.capacity_groups}), so that "
            f"each device holds whole groups of experts; set model.capacity_groups to a multiple of {parts}"
        )


@dataclass(frozen=True)
class Limit:
    """A group of experts accepts at most `most` assignments from a block of `tokens` tokens."""

    tokens: int
    groups: int
    most: int

    def bound(self, tokens: int, share: int) -> int:
        """Return how many assignments of `tokens` tokens one of `share` equal parts of the experts can receive. Raises
        UsageError if the tokens are not whole blocks.
        """
        return self._blocks(tokens) * (self.groups // share) * self.most

    def _blocks(self, tokens: int) -> int:
        if tokens % self.tokens:
            raise UsageError(
                f"a device holds {tokens:,} tokens of a batch, which are not whole blocks of {self.tokens:,} tokens "
                "(model.capacity_rows sequences); lower model.capacity_rows, or use larger batches"
            )
        return tokens // self.tokens

    def clip(
        self, routing: Routing, valid: Bool[Array, " T"], experts: int, axes: Axes = ()
    ) -> tuple[Routing, Float[Array, ""]]:
        """Apply the rule: return the routing, with the expert `experts` (nobody) in place of those of dropped
        assignments, and the share of valid tokens' assignments that are dropped, on all devices along `axes`.
        """
        blocks = self._blocks(routing.expert.shape[0])
        group = jnp.where(valid[:, None], routing.expert // (experts // self.groups), self.groups)
        share = jax.lax.stop_gradient(routing.share)
        kept = _largest(group.reshape(blocks, -1), share.reshape(blocks, -1), self).reshape(group.shape)
        own = jnp.sum(valid[:, None] & ~kept, dtype=jnp.int32), jnp.sum(valid, dtype=jnp.int32) * group.shape[1]
        dropped, assignments = jax.lax.psum(own, axes)
        return Routing(jnp.where(kept, routing.expert, experts), routing.share), dropped / jnp.maximum(assignments, 1)


def clipped(
    routing: Routing, sums: RouterSums, valid: Bool[Array, " T"], limit: Limit | None, axes: Axes = ()
) -> tuple[Routing, RouterSums]:
    """Apply a limit, if there is one, and add the rate of dropped assignments to the sums. The other sums describe the
    router's choices, dropped or not.
    """
    if limit is None:
        return routing, sums
    routing, overflow = limit.clip(routing, valid, sums.assignments.shape[-1], axes)
    return routing, sums._replace(overflow=overflow)


def _largest(group: Int[Array, "n A"], share: Float[Array, "n A"], limit: Limit) -> Bool[Array, "n A"]:
    """Select the `limit.most` assignments with the largest shares in each block and group. None is selected in the
    group `limit.groups`, which stands for padding.
    """
    place = jnp.broadcast_to(jnp.arange(group.shape[1], dtype=jnp.int32), group.shape)
    counts = jnp.sum(group[:, :, None] == jnp.arange(limit.groups), axis=1, dtype=jnp.int32)
    salt = _hash(counts.astype(jnp.uint32) + _hash(1 + jnp.arange(limit.groups, dtype=jnp.uint32)))
    tie = _hash(place.astype(jnp.uint32) + salt.sum(axis=1, dtype=jnp.uint32)[:, None])
    by_group, _, _, place = jax.lax.sort((group, -share, tie, place), dimension=1, num_keys=3)
    ends = jnp.cumsum(counts, axis=1)
    first = jnp.pad(ends, ((0, 0), (1, 0)))  # where each group starts in the sorted order
    rank = jnp.arange(group.shape[1]) - jnp.take_along_axis(first, by_group, axis=1)
    kept = (rank < limit.most) & (by_group < limit.groups)
    row = jnp.arange(group.shape[0])[:, None]
    return jnp.zeros(group.shape, bool).at[row, place].set(kept, unique_indices=True)


def _hash(number: UInt[Array, "*shape"]) -> UInt[Array, "*shape"]:
    """Mix the bits of each number; different numbers stay different (the finalizer of MurmurHash3, A. Appleby)."""
    number = (number ^ number >> 16) * jnp.uint32(0x85EBCA6B)
    number = (number ^ number >> 13) * jnp.uint32(0xC2B2AE35)
    return number ^ number >> 16
