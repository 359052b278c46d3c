"""Every option of a model has an effect, or is refused where it has none."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from datakit.errors import UsageError
from datakit.trainer.models import grug, latent_moe, olmoe, weights
from tests.support.trainer.small_models import FAMILY, LATENT, MIXED, MODELS, SMALL, dense, random_batch

OTHER: dict[str, Any] = {  # other values than those of the small models
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
    "latent": 12,
    "dense_layers": (1,),
    "dense_width": 12,
    "width": 12,
    "activation": "relu",
    "attention_bias": "none",
    "tied_embeddings": True,
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
    "exchange": "all_to_all",
    "capacity_factor": 2.0,
    "capacity_rows": 1,
    "capacity_groups": 2,
    "attention_backend": "dense",
    "remat": "recompute_all",
    "compute": "bfloat16",
    "loss_piece": 8,
}


CAPACITY = {"capacity_factor": 0.5, "capacity_rows": 2, "capacity_groups": 8}
BESIDE = dict.fromkeys(CAPACITY, CAPACITY)  # settings with which these options have an effect


@functools.cache
def program(module: Any, config: Any, backward: bool = False, experts: int = 1) -> str:
    """The lowered initialization and loss; with `backward`, its gradients. `experts` devices share the experts."""
    batch = random_batch(SMALL, rows=2)

    def run(key: Any) -> Any:
        def loss(params: Any) -> Any:
            output = module.apply(params, module.initial_state(config), batch, config)
            return jnp.sum(output.losses * output.weights) + output.auxiliary

        return (jax.grad(loss) if backward else loss)(weights.initialize(module.weights(config), key))

    with jax.set_mesh(weights.make_mesh(devices=jax.devices()[:experts], experts=experts)):
        return jax.jit(run).lower(jax.random.key(0)).as_text()


def matters(module: Any, config: Any, name: str) -> bool:
    """Return True if changing this option alone changes the program."""
    config = dataclasses.replace(config, **BESIDE.get(name, {}))
    how = (name == "remat", 2 if name == "exchange" else 1)
    other = dataclasses.replace(config, **{name: OTHER[name]})
    return program(module, other, *how) != program(module, config, *how)


def options(config: Any) -> list[str]:
    """The names of a configuration's options."""
    return [field.name for field in dataclasses.fields(config)]


@pytest.mark.parametrize("name", options(SMALL))
def test_each_option_of_grug_changes_the_program(name: str) -> None:
    assert matters(grug, SMALL, name)


LAYERED = dataclasses.replace(MIXED, dense_layers=(0,), tied_embeddings=False)
OTHERS = {"olmoe": (olmoe, LAYERED), "dense": MODELS["dense"], "latent": (latent_moe, LATENT)}
CASES = [(model, name) for model, (_, config) in OTHERS.items() for name in options(config)]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_each_option_of_the_other_models_changes_the_program(model: str, name: str) -> None:
    module, config = OTHERS[model]
    if getattr(config, name) == OTHER[name]:  # the other way round
        config = dataclasses.replace(config, **{name: {"attention_bias": "all", "query_key_norm": "head"}[name]})
    assert matters(module, config, name)


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
    for changes in ({"dense_layers": (1,)}, {"dense_width": 8}):
        with pytest.raises(UsageError, match="set both, or neither"):
            dataclasses.replace(FAMILY, **changes)
    for layers in ((0, 1, 2), (3,), (-1,), (1, 0), (1, 1)):
        with pytest.raises(UsageError, match=r"dense_layers is .*list some of the layers 0 to 2, each once"):
            dataclasses.replace(FAMILY, dense_layers=layers, dense_width=8)
    with pytest.raises(UsageError, match="shared_width is -1"):
        dataclasses.replace(FAMILY, shared_width=-1)
    with pytest.raises(UsageError, match=r"latent .32. must be less than hidden .32."):
        dataclasses.replace(LATENT, latent=32)
    with pytest.raises(UsageError, match=r"experts_per_token .8. must be between 1 and experts - 1"):
        dataclasses.replace(LATENT, experts_per_token=8)
    with pytest.raises(UsageError, match="width is 0"):
        dataclasses.replace(MODELS["dense"][1], width=0)
