"""Every setting of every optimizer changes the update or the rates, or is refused where it has no effect."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from datakit.errors import UsageError
from datakit.trainer.optimizers import KIND, adamh, adamw, load_optimizer, muon, muonh
from datakit.trainer.optimizers.protocol import Optimizer
from datakit.trainer.optimizers.schedules import learning_rates
from datakit.trainer.optimizers.settings import IDLE, input_names
from datakit.trainer.optimizers.update import grouped, groups_of, initial_moments
from datakit.trainer.train import trainer_of
from tests.support.trainer.trainer_runs import tiny_run
from tests.support.trainer.weight_tables import TABLE, compiled

CONFIGS = {name: load_optimizer(name) for name in KIND.built_in}
OTHER: dict[str, Any] = {  # other values than the defaults
    "learning_rate": 0.02,
    "adam_learning_rate": 0.03,
    "expert_learning_rate": 0.04,
    "router_learning_rate": 0.05,
    "beta1": 0.8,
    "beta2": 0.9,
    "epsilon": 1e-6,
    "weight_decay": 0.2,
    "decaying": "matrices",
    "momentum": 0.8,
    "nesterov": False,
    "iterations": 4,
    "orthogonalize_in": "bfloat16",
    "scale": "spectral",
    "clip_norm": 2.0,
    "schedule": "trapezoid",
    "warmup": 0.2,
    "decay": 0.3,
    "final": 0.2,
    "ema": 0.9,
}
PAIRS = [(kind, field.name) for kind, config in CONFIGS.items() for field in dataclasses.fields(config)]


@functools.cache
def program(optimizer: Optimizer) -> str:
    """The lowered update of a table with a weight of every group."""
    shapes = jax.tree.map(lambda weight: jax.ShapeDtypeStruct(weight.shape, jnp.float32), TABLE)
    table = grouped(TABLE, optimizer)
    moments = jax.eval_shape(lambda params: initial_moments(params, table, optimizer), shapes)
    rates = dict.fromkeys(groups_of(table), jax.ShapeDtypeStruct((), jnp.float32))
    return compiled(optimizer).lower(shapes, moments, shapes, jnp.int32(0), rates).as_text()


def rates(optimizer: Optimizer) -> list[Any]:
    """The rates of all steps of a short run."""
    return [learning_rates(optimizer, groups_of(TABLE), step, 20) for step in range(20)]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_each_setting_changes_the_rates_or_the_program_but_never_both(kind: str, name: str) -> None:
    base = CONFIGS[kind](schedule="trapezoid") if name == "decay" else CONFIGS[kind]()
    changed = dataclasses.replace(base, **{name: OTHER[name]})
    assert getattr(base, name) != OTHER[name]
    if name == "ema":
        assert "ema" in trainer_of(tiny_run(optimizer=changed)).like()
    elif name in input_names(base):
        assert rates(changed) != rates(base)
        assert changed.constants() == base.constants()
        assert program(changed) == program(base)
    else:
        assert rates(changed) == rates(base)
        assert program(changed) != program(base)


def test_every_setting_is_tested() -> None:
    assert {name for _, name in PAIRS} == OTHER.keys()


@pytest.mark.parametrize("schedule", IDLE)
@pytest.mark.parametrize("kind", CONFIGS)
def test_settings_without_effect_are_refused(kind: str, schedule: str) -> None:
    for name, reason in IDLE[schedule].items():
        expected = re.escape(f"optimizer.{name} = {OTHER[name]!r} has no effect {reason}; remove this setting")
        with pytest.raises(UsageError, match=expected):
            CONFIGS[kind](**{"schedule": schedule, name: OTHER[name]})
    with pytest.raises(UsageError, match="decaying = 'matrices' has no effect with weight_decay = 0"):
        adamw.Config(weight_decay=0.0, decaying="matrices")


@pytest.mark.parametrize("kind", CONFIGS)
def test_impossible_settings_are_refused(kind: str) -> None:
    names = {field.name for field in dataclasses.fields(CONFIGS[kind])}
    wrong: list[dict[str, Any]] = [
        *({name: value} for name in names if name.endswith("learning_rate") for value in (-1.0, float("nan"))),
        *({name: value} for name in ("beta1", "beta2", "momentum", "warmup", "ema") for value in (1.0, -0.1)),
        {"epsilon": -1e-9},
        {"schedule": "trapezoid", "warmup": 0.9, "decay": 0.2},
        {"final": float("inf")},
        {"weight_decay": -0.1},
        {"clip_norm": 0.0},
        {"clip_norm": float("nan")},
        {"iterations": 0},
        {"iterations": 21},
    ]
    tried = [settings for settings in wrong if settings.keys() <= names]
    assert len(tried) >= 12
    for settings in tried:
        with pytest.raises(UsageError, match="optimizer"):
            CONFIGS[kind](**settings)


def test_a_program_that_uses_a_rate_as_a_constant_fails_when_traced() -> None:
    class Wrong(adamw.Config):
        def update(self, step: Any) -> Any:
            direction, moments = self.direction(step)
            return step.value - self.learning_rate * direction, moments

    with pytest.raises(TypeError, match="NoneType"):
        program(Wrong())


def test_peaks_of_groups() -> None:
    for config in (adamh.Config, muon.Config, muonh.Config):
        settings = config(learning_rate=0.1, adam_learning_rate=0.2)
        assert [settings.peak(group) for group in ("adam", "router", "adamh", "adamh_expert")] == [0.2, 0.2, 0.1, 0.1]
    assert {adamw.Config(learning_rate=0.3).peak(group) for group in ("adam", "router", "adamh")} == {0.3}
