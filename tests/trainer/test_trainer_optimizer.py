"""The optimizer does what its formulas say; sizes are those that were published."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer import optimizer as optimizers
from datakit.trainer import scaling
from datakit.trainer.models import grug
from datakit.trainer.models.weights import Tree, Weight, initialize, leaves, parameter_count
from datakit.trainer.optimizer import Optimizer

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


def test_adamh_keeps_the_norm_of_every_matrix_and_turns_by_the_rate() -> None:
    settings = Optimizer(learning_rate=0.05, schedule="constant", warmup=0.0, expert_learning_rate=0.02)
    history = run(settings, 30)
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
    settings = Optimizer(
        kind=kind, learning_rate=0.02, adam_learning_rate=0.02, weight_decay=decay, clip_norm=1e9, epsilon=1e-8
    )
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
def test_schedules(schedule: Any, expected: dict[int, float]) -> None:
    share = optimizers.multiplier(Optimizer(schedule=schedule, warmup=0.1, final=0.1), 100)
    assert {step: float(share(step)) for step in expected} == pytest.approx(expected, abs=1e-6)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"beta2": 1.0},
        {"warmup": 0.9, "decay": 0.2},
        {"weight_decay": 0.1},
        {"clip_norm": 0.0},
        {"ema": 1.0},
    ):
        with pytest.raises(UsageError, match="optimizer"):
            Optimizer(**wrong)  # type: ignore[arg-type]


PUBLISHED = [
    # budget, hidden, layers, heads, kv, F, tokens, batch, steps, adam, adamh, beta2, total, active
    (1e18, 512, 6, 4, 1, 8.7196e7, 3.8228e9, 64, 14583, 0.00265, 0.01148, 0.99800, 0.293e9, 0.151e9),
    (1e18, 768, 8, 6, 1, 2.0899e8, 1.5949e9, 32, 12168, 0.00206, 0.00895, 0.99900, 0.679e9, 0.254e9),
    (1e18, 1024, 11, 8, 2, 4.5236e8, 7.3687e8, 32, 5622, 0.00231, 0.01000, 0.99900, 1.441e9, 0.402e9),
    (1e19, 1024, 11, 8, 2, 4.5236e8, 7.3687e9, 128, 14055, 0.00241, 0.01046, 0.99601, 1.441e9, 0.402e9),
    (3e19, 1536, 16, 12, 3, 1.2764e9, 7.8347e9, 128, 14943, 0.00204, 0.00886, 0.99601, 4.241e9, 0.843e9),
    (3e20, 2048, 21, 16, 4, 2.7401e9, 3.6495e10, 1024, 8701, 0.00338, 0.01463, 0.96849, 9.492e9, 1.565e9),
    (1e21, 2560, 26, 20, 5, 5.0245e9, 6.6342e10, 1024, 15817, 0.00263, 0.01139, 0.96849, 17.99e9, 2.66e9),
    (1e23, 5120, 49, 40, 10, 3.371e10, 9.888e11, 16384, 14735, 0.00381, 0.01651, 0.95, 131.8e9, 16.24e9),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=[f"{row[0]:.0e}-{row[1]}" for row in PUBLISHED])
def test_sizes_are_the_published_ones(row: tuple[float, ...]) -> None:
    plan = scaling.size(row[0], int(row[1]))
    model, rates = plan.model, plan.optimizer
    assert (model.layers, model.heads, model.kv_heads, plan.batch) == (row[2], row[3], row[4], row[7])
    ours = (
        grug.flops_per_token(model, 4096, with_head=False),
        plan.tokens,
        plan.steps,
        rates.adam_learning_rate,
        rates.learning_rate,
        rates.beta2,
        parameter_count(grug.weights(model)),
        grug.active_parameters(model),
    )
    assert ours == pytest.approx((row[5], row[6], *row[8:]), rel=5e-3)


def test_predictions_are_the_published_ones() -> None:
    assert scaling.predict(1e21).macro_loss == pytest.approx(2.606, abs=1e-3)
    assert scaling.predict(1e23).macro_loss == pytest.approx(2.252, abs=1e-3)
    assert scaling.predict(1e21).bits_per_byte == pytest.approx(0.792, abs=2e-3)
    assert scaling.size(1e22, 3072).critical_batch == pytest.approx(6425, rel=5e-3)
    assert scaling.predict(1e15).extrapolated


def test_plans_warn_above_the_critical_batch_size() -> None:
    assert any("critical batch size" in warning for warning in scaling.size(1e23, 5120).warnings)
    assert scaling.size(1e19, 1024).warnings == []
    assert any(line.startswith("warning") for line in scaling.size(1e23, 5120).lines())


def test_another_base_of_beta2_is_an_option() -> None:
    assert scaling.size(1e19, 1024, beta2_base=0.998).optimizer.beta2 == pytest.approx(0.998**4)
    assert scaling.size(1e18, 512, beta2_base=0.998).optimizer.beta2 == pytest.approx(0.998**2)


def test_impossible_budgets_and_widths_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 128"):
        scaling.size(1e19, 1000)
    with pytest.raises(UsageError, match="buys nothing"):
        scaling.size(0, 1024)


def test_every_weight_of_grug_has_the_group_of_the_recipe() -> None:
    table = leaves(grug.weights(dataclasses.replace(grug.Config(), layers=2)))
    groups = {path: weight.group for path, weight in table.items()}
    adam = {"embed", "blocks/head_gate"} | {path for path in table if path.endswith("_norm")}
    assert {path for path, group in groups.items() if group == "adam"} == adam
    experts = {f"blocks/{name}" for name in ("expert_in", "expert_out", "shared_in", "shared_out")}
    assert {path for path, group in groups.items() if group == "adamh_expert"} == experts
    assert {path for path, group in groups.items() if group == "router"} == {"blocks/router"}
    assert table["blocks/expert_in"].stack == 2
    assert table["head"].stack == 0
