"""A capacity drops the smallest shares of each block and group, and favours no position."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.trainer.models import olmoe
from datakit.trainer.models.experts.capacity import Capacity, Limit, with_capacity
from datakit.trainer.models.router import Routing
from tests.support.trainer.small_models import SMALL

EXPERTS, CHOICES = 12, 2
LIMIT = Limit(tokens=20, groups=4, most=7)


def random_routing(seed: int, tokens: int) -> tuple[Routing, Any]:
    """Experts that crowd the first group, shares with ties, and some padding."""
    generator = np.random.default_rng(seed)
    expert = np.minimum(generator.integers(0, EXPERTS, (tokens, CHOICES)), generator.integers(0, EXPERTS, (tokens, 1)))
    share = generator.integers(1, 9, (tokens, CHOICES)) / 8
    return Routing(jnp.asarray(expert), jnp.asarray(share, jnp.float32)), jnp.asarray(generator.random(tokens) < 0.9)


@jax.jit
def clip(routing: Routing, valid: Any) -> Any:
    return LIMIT.clip(routing, valid, EXPERTS)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_shares_are_kept(seed: int) -> None:
    routing, valid = random_routing(seed, 60)
    found, overflow = clip(routing, valid)
    np.testing.assert_array_equal(found.share, routing.share)
    expert, share, kept = (np.asarray(value) for value in (*routing, found.expert < EXPERTS))
    np.testing.assert_array_equal(np.asarray(found.expert)[kept], expert[kept])
    assert not kept[~np.asarray(valid)].any()
    dropped = 0
    for block in np.split(np.arange(60), 3):
        for group in range(LIMIT.groups):
            inside = (expert[block] // 3 == group) & np.asarray(valid)[block, None]
            chosen = kept[block] & inside
            assert chosen.sum() == min(inside.sum(), LIMIT.most)
            lost = inside & ~chosen
            dropped += lost.sum()
            assert not lost.any() or share[block][lost].max() <= share[block][chosen].min()
    assert dropped > 10
    assert overflow == pytest.approx(dropped / (np.asarray(valid).sum() * CHOICES))


def test_a_block_s_drops_depend_on_the_block_alone() -> None:
    routing, valid = random_routing(7, 60)
    whole, _ = clip(routing, valid)
    for block in (slice(0, 20), slice(20, 60)):
        part, _ = clip(Routing(routing.expert[block], routing.share[block]), valid[block])
        np.testing.assert_array_equal(part.expert, whole.expert[block])


def test_no_position_is_favoured_among_equal_shares() -> None:
    """Each position is kept as often as any other, within five standard deviations."""
    trials, limit = 3000, Limit(tokens=32, groups=4, most=4)
    expert = np.random.default_rng(0).integers(0, 4, (trials, 32, 1))
    routing = Routing(jnp.asarray(expert), jnp.ones(expert.shape))
    valid = jnp.ones((trials, 32), bool)
    kept = jax.jit(jax.vmap(lambda routing, valid: limit.clip(routing, valid, 4)[0].expert < 4))(routing, valid)
    rates = np.asarray(kept)[:, :, 0].mean(axis=0)
    orders = len({tuple(np.bincount(one[:, 0], minlength=4)) for one in expert})  # each has an order of ties of its own
    assert orders > 500
    assert np.abs(rates - rates.mean()).max() < 5 * 0.5 / np.sqrt(orders)


def test_a_limit_follows_from_the_settings() -> None:
    settings = Capacity(capacity_factor=1.25, capacity_rows=4, capacity_groups=8)
    limit = settings.limit(length=100, choices=3)
    assert limit == Limit(tokens=400, groups=8, most=188)
    assert limit is not None
    assert limit.bound(800, 4) == 2 * 2 * 188
    assert Capacity().limit(100, 3) is None
    with pytest.raises(UsageError, match=r"holds 600 tokens of a batch, which are not whole blocks of 400 tokens"):
        limit.bound(600, 4)


def test_evaluation_changes_the_factor_alone() -> None:
    training = olmoe.Config(capacity_factor=1.0, capacity_rows=2)
    assert with_capacity(training, None) == olmoe.Config(capacity_rows=2)
    assert with_capacity(SMALL, None) == SMALL
    assert with_capacity("a model without the setting", None) == "a model without the setting"
    with pytest.raises(UsageError, match="the model has no setting capacity_factor"):
        with_capacity("a model without the setting", 1.0)
