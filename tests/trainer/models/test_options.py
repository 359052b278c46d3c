"""Every option of a model has an effect, or is refused where it has none."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from datakit.errors import UsageError
from datakit.trainer.models import grug, olmoe, weights
from tests.support.small_models import FAMILY, SMALL, dense, random_batch

OTHER: dict[str, Any] = {  # other values than those of `SMALL` and `FAMILY`
    "vocabulary": 101,
    "hidden": 16,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "head_width": 4,
    "experts": 6,
    "experts_per_token": 3,
    "expert_width": 12,
    "shared_width": 16,
    "gate_rank": 4,
    "window": 16,
    "rope_theta": 500.0,
    "query_scale": 1.0,
    "norm_epsilon": 1e-3,
    "init_scale": 0.5,
    "init_std": 0.1,
    "z_loss": 0.5,
    "router_z_loss": 0.5,
    "balance_loss": 0.5,
    "expert_gate": "bilinear",
    "query_key_norm": "none",
    "renormalize": True,
    "moe_backend": "tiles",
    "remat": "recompute_all",
    "compute": "bfloat16",
    "loss_piece": 8,
}


@functools.cache
def program(module: Any, config: Any, backward: bool = False) -> str:
    """The lowered initialization and loss; with `backward`, its gradients."""
    batch = random_batch(SMALL, rows=1)

    def run(key: Any) -> Any:
        def loss(params: Any) -> Any:
            output = module.apply(params, module.initial_state(config), batch, config)
            return jnp.sum(output.losses * output.weights) + output.auxiliary

        return (jax.grad(loss) if backward else loss)(weights.initialize(module.weights(config), key))

    return jax.jit(run).lower(jax.random.key(0)).as_text()


def matters(module: Any, config: Any, name: str) -> bool:
    """Return True if changing this option alone changes the program."""
    backward = name == "remat"
    other = dataclasses.replace(config, **{name: OTHER[name]})
    return program(module, other, backward) != program(module, config, backward)


def options(config: Any) -> list[str]:
    """The names of a configuration's options."""
    return [field.name for field in dataclasses.fields(config)]


@pytest.mark.parametrize("name", options(SMALL))
def test_each_option_of_grug_changes_the_program(name: str) -> None:
    assert matters(grug, SMALL, name)


@pytest.mark.parametrize("name", options(FAMILY))
def test_each_option_of_the_olmoe_family_changes_the_program(name: str) -> None:
    assert matters(olmoe, FAMILY, name)


@pytest.mark.parametrize("name", sorted(set(options(SMALL)) - {"experts"}))
def test_each_option_changes_a_dense_model_or_is_refused(name: str) -> None:
    config = dense(SMALL)
    if name in grug.ROUTED:
        with pytest.raises(UsageError, match=f"dense model, in which {name} would have no effect"):
            dataclasses.replace(config, **{name: OTHER[name]})
    else:
        assert matters(grug, config, name)


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(UsageError, match="would save nothing"):
        dense(SMALL, remat="save_moe")
    with pytest.raises(UsageError, match="window is 0"):
        dataclasses.replace(FAMILY, window=0)
