"""The optimizer does what its formulas say."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer import optimizer as optimizers
from datakit.trainer.models.weights import Tree, Weight, initialize
from datakit.trainer.optimizer import IDLE, Optimizer
from datakit.trainer.train import trainer_of
from tests.support.trainer_runs import tiny_run

TABLE = {
    "embed": Weight((11, 6), P(), 0.3),
    "gain": Weight((6,), P(), None),
    "router": Weight((2, 6, 4), P(), 0.3, "router"),
    "matrix": Weight((2, 6, 5), P(), 0.3, "adamh", 1),
    "experts": Weight((2, 4, 6, 5), P(), 0.3, "adamh_expert", 2),
    "head": Weight((6, 11), P(), 0.3, "adamh"),
}


def gradients_at(step: int, scale: float = 1.0) -> Tree:
    keys = jax.random.split(jax.random.key(step), len(TABLE))
    return {
        name: scale * jax.random.normal(key, weight.shape)
        for key, (name, weight) in zip(keys, TABLE.items(), strict=True)
    }


def run(settings: Optimizer, steps: int, scale: float = 1.0) -> list[Tree]:
    """The parameters before the first and after each step."""
    params = initialize(TABLE, jax.random.key(0))
    moments, schedule, history = optimizers.initial_moments(params), optimizers.multiplier(settings, 10), [params]
    advance = jax.jit(lambda g, m, p, s: optimizers.update(g, m, p, s, TABLE, settings, schedule)[:2])
    for step in range(steps):
        params, moments = advance(gradients_at(step, scale), moments, params, jnp.int32(step))
        history.append(params)
    return history


def test_adamh_keeps_norms_and_turns_by_the_rate() -> None:
    settings = Optimizer(learning_rate=0.05, schedule="constant", warmup=0.0, expert_learning_rate=0.02)
    history = run(settings, 10)
    for name, rate in (("matrix", 0.05), ("experts", 0.02), ("head", 0.05)):
        axes = tuple(range(TABLE[name].stack, len(TABLE[name].shape)))
        norms = np.stack([np.sqrt((np.asarray(params[name], np.float64) ** 2).sum(axes)) for params in history])
        np.testing.assert_allclose(norms, np.broadcast_to(norms[0], norms.shape), rtol=2e-6)
        moved = np.sqrt(((history[1][name] - history[0][name]) ** 2).sum(axes)) / norms[0]
        assert (moved <= rate * 1.01).all()
        assert (moved > rate * 0.5).all()


def test_adamh_equals_its_formula() -> None:
    settings = Optimizer(learning_rate=0.03, schedule="constant", warmup=0.0, beta1=0.8, beta2=0.9, clip_norm=1e9)
    history = run(settings, 3)
    value = np.asarray(history[0]["head"], np.float64)
    mu, nu = np.zeros_like(value), np.zeros_like(value)
    for step in range(3):
        gradient = np.asarray(gradients_at(step)["head"], np.float64)
        mu, nu = 0.8 * mu + 0.2 * gradient, 0.9 * nu + 0.1 * gradient**2
        direction = mu / (1 - 0.8 ** (step + 1)) / (np.sqrt(nu / (1 - 0.9 ** (step + 1))) + 1e-15)
        moved = value - 0.03 * np.linalg.norm(value) * direction / np.linalg.norm(direction)
        value = moved * np.linalg.norm(value) / np.linalg.norm(moved)
        np.testing.assert_allclose(history[step + 1]["head"], value, atol=2e-6)


@pytest.mark.parametrize("kind", ["adamh", "adamw"])
def test_adam_is_optax_adam(kind: Any) -> None:
    decay = 0.1 if kind == "adamw" else 0.0
    rates: Any = {} if kind == "adamw" else {"adam_learning_rate": 0.02}
    settings = Optimizer(kind=kind, learning_rate=0.02, weight_decay=decay, clip_norm=1e9, epsilon=1e-8, **rates)
    schedule = optimizers.multiplier(settings, 10)
    theirs = optax.adamw(lambda step: 0.02 * schedule(step), 0.9062, 0.998, 1e-8, weight_decay=decay)
    history = run(settings, 5)
    params = history[0]
    state = theirs.init(params)
    for step in range(5):
        updates, state = theirs.update(gradients_at(step), state, params)
        params = optax.apply_updates(params, updates)
    names = TABLE if kind == "adamw" else ("embed", "gain", "router")
    for name in names:
        np.testing.assert_allclose(history[-1][name], params[name], atol=1e-6, err_msg=name)  # type: ignore[index]


def test_each_family_is_clipped_alone() -> None:
    params = initialize(TABLE, jax.random.key(0))
    settings = Optimizer(kind="adamh")
    calm = gradients_at(0, 1e-3)
    spike = calm | {"embed": calm["embed"] * 1e6}
    schedule = optimizers.multiplier(settings, 10)

    def moments(gradients: Tree) -> Tree:
        fresh = optimizers.initial_moments(params)
        return optimizers.update(gradients, fresh, params, jnp.int32(0), TABLE, settings, schedule)[1]["mu"]

    clipped, unclipped = moments(spike), moments(calm)
    for name in ("matrix", "experts", "head"):
        np.testing.assert_array_equal(clipped[name], unclipped[name])
    assert float(jnp.abs(clipped["router"]).max()) < float(jnp.abs(unclipped["router"]).max())
    family = np.sqrt(sum(float(jnp.sum(clipped[name] ** 2)) for name in ("embed", "gain", "router")))
    assert family / (1 - settings.beta1) == pytest.approx(1.0, rel=1e-3)


def test_a_matrix_without_gradient_stays() -> None:
    value = jnp.ones((3, 3))
    np.testing.assert_array_equal(optimizers.rotated(value, jnp.zeros((3, 3)), 0.1, 0), value)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1}),
        ("cosine", {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1}),
        ("constant", {0: 0.1, 9: 1.0, 50: 1.0, 100: 1.0}),
        ("trapezoid", {0: 0.1, 9: 1.0, 79: 1.0, 90: 0.55, 100: 0.1}),
    ],
)
def test_schedules_hit_their_published_points(schedule: Any, expected: dict[int, float]) -> None:
    final = 0.0 if schedule == "constant" else 0.1
    share = optimizers.multiplier(Optimizer(schedule=schedule, warmup=0.1, final=final), 100)
    assert {step: float(share(step)) for step in expected} == pytest.approx(expected, abs=1e-6)


def test_impossible_settings_are_refused() -> None:
    for wrong in (
        {"beta2": 1.0},
        {"schedule": "trapezoid", "warmup": 0.9, "decay": 0.2},
        {"warmup": 1.0},
        {"final": -0.1},
        {"final": float("nan")},
        {"kind": "adamw", "weight_decay": -0.1},
        {"clip_norm": float("nan")},
        {"weight_decay": 0.1},
        {"clip_norm": 0.0},
        {"ema": 1.0},
    ):
        with pytest.raises(UsageError, match="optimizer"):
            Optimizer(**wrong)  # type: ignore[arg-type]


OPTIMIZER: dict[str, Any] = {  # other values than the defaults
    "kind": "adamw",
    "learning_rate": 0.02,
    "adam_learning_rate": 0.03,
    "expert_learning_rate": 0.04,
    "router_learning_rate": 0.05,
    "beta1": 0.8,
    "beta2": 0.9,
    "epsilon": 1e-6,
    "weight_decay": 0.1,
    "clip_norm": 2.0,
    "schedule": "cosine",
    "warmup": 0.2,
    "decay": 0.3,
    "final": 0.1,
    "ema": 0.9,
}
SETTINGS = [  # every kind and every schedule
    {"kind": kind, "schedule": schedule}
    for kind in ("adamh", "adamw")
    for schedule in ("linear", "constant", "trapezoid")
]


@functools.cache
def update(settings: Optimizer) -> str:
    """The lowered update of a table with a weight of every group."""
    params = {name: jnp.zeros(weight.shape) for name, weight in TABLE.items()}

    def run(gradients: Any, moments: Any, step: Any) -> Any:
        schedule = optimizers.multiplier(settings, 100)
        return optimizers.update(gradients, moments, params, step, TABLE, settings, schedule)

    return jax.jit(run).lower(params, optimizers.initial_moments(params), jnp.int32(0)).as_text()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings.values()))
@pytest.mark.parametrize("name", OPTIMIZER)
def test_each_option_of_the_optimizer_changes_the_update_or_is_refused(name: str, settings: dict[str, Any]) -> None:
    base = Optimizer(**settings)
    idle = IDLE[base.kind] | IDLE[base.schedule]
    if name in idle:
        with pytest.raises(UsageError, match=rf"optimizer.{name} = .* has no effect {idle[name]}; remove this setting"):
            dataclasses.replace(base, **{name: OPTIMIZER[name]})
    elif name == "ema":
        averaging = dataclasses.replace(base, ema=0.9)
        assert "ema" in trainer_of(tiny_run(optimizer=averaging)).like()
    elif getattr(base, name) != OPTIMIZER[name]:
        assert update(dataclasses.replace(base, **{name: OPTIMIZER[name]})) != update(base)


def test_every_option_is_tested() -> None:
    assert {field.name for field in dataclasses.fields(Optimizer)} == OPTIMIZER.keys()
