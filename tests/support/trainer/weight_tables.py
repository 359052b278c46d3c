"""A table with a weight of every group, gradients for it, and a few steps of an optimizer on it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.weights import Tree, Weight, initialize, leaves
from datakit.trainer.optimizers.protocol import Optimizer
from datakit.trainer.optimizers.schedules import learning_rates, share
from datakit.trainer.optimizers.update import grouped, groups_of, initial_moments, nested, update

SPLIT = P(None, None, "data")
TABLE: Tree = {
    "embed": Weight((16, 8), P(None, "data"), 0.3),
    "gain": Weight((8,), P(), None),
    "blocks": {
        "router": Weight((2, 8, 4), P(), 0.3, "router"),
        "tall": Weight((3, 8, 5), P(None, "data", None), 0.3, "adamh", 1),
        "wide": Weight((3, 5, 16), SPLIT, 0.3, "adamh", 1),
        "experts": Weight((2, 8, 6, 16), P(None, *SPLIT), 0.3, "adamh_expert", 2),
    },
    "head": Weight((8, 16), P("data", None), 0.3, "adamh"),
}
MATRICES = ("blocks/tall", "blocks/wide", "blocks/experts")
STEPS = 10


def gradients_at(step: int, scale: float = 1.0) -> Tree:
    """Random gradients, which depend on the step only."""
    flat = leaves(TABLE)
    keys = jax.random.split(jax.random.key(step), len(flat))
    draw = zip(keys, flat.items(), strict=True)
    return nested({name: scale * jax.random.normal(key, weight.shape) for key, (name, weight) in draw})


def compiled(optimizer: Optimizer) -> Any:
    """The jitted update: (gradients, moments, params, step, rates) -> (params, moments, metrics)."""
    table = grouped(TABLE, optimizer)
    return jax.jit(partial(update, table=table, optimizer=optimizer.constants()))


def trained(optimizer: Optimizer, steps: int) -> list[dict[str, Any]]:
    """The parameters, by path, before the first and after each step of a run of `STEPS` steps."""
    params, table, advance = initialize(TABLE, jax.random.key(0)), grouped(TABLE, optimizer), compiled(optimizer)
    moments, history = initial_moments(params, table, optimizer), [leaves(params)]
    for step in range(steps):
        rates = learning_rates(optimizer, groups_of(table), step, STEPS)
        params, moments, _ = advance(gradients_at(step), moments, params, jnp.int32(step), rates)
        history.append(leaves(params))
    return history


def followed(theirs: Any, steps: int) -> dict[str, Any]:
    """The parameters after the steps of `trained` with an optimizer of optax."""
    params: Any = leaves(initialize(TABLE, jax.random.key(0)))
    state = theirs.init(params)
    for step in range(steps):
        updates, state = theirs.update(leaves(gradients_at(step)), state, params)
        params = optax.apply_updates(params, updates)
    return params


def rates_for_optax(optimizer: Optimizer, peak: float) -> Any:
    """The optimizer's schedule as optax takes it: a function of the step."""
    return lambda step: peak * share(optimizer, int(step), STEPS)


def norms_of(values: Any, weight: Weight) -> Any:
    """The norm of each matrix of a stack."""
    return jnp.sqrt(jnp.sum(values**2, axis=tuple(range(weight.stack, values.ndim))))
