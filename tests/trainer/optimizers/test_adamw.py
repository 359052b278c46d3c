"""AdamW equals optax's and PyTorch's, and its defaults are the recipe of OLMoE."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from datakit.trainer.config import Evaluation
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.models.weights import leaves
from datakit.trainer.optimizers import adamw
from datakit.trainer.optimizers.schedules import share
from datakit.trainer.run_file import read_run_file
from datakit.trainer.train import train
from tests.support.trainer.torch_optimizers import stepped
from tests.support.trainer.trainer_runs import TextBytes, silent
from tests.support.trainer.weight_tables import STEPS, TABLE, followed, gradients_at, rates_for_optax, trained


def test_the_defaults_are_the_recipe_of_olmoe() -> None:
    recipe = adamw.Config()
    assert (recipe.learning_rate, recipe.beta1, recipe.beta2, recipe.epsilon) == (4e-4, 0.9, 0.95, 1e-8)
    assert (recipe.weight_decay, recipe.decaying, recipe.clip_norm) == (0.1, "all", 1.0)
    assert (recipe.schedule, recipe.final) == ("cosine", 0.1)


def test_the_built_in_run_is_the_recipe_and_trains(tmp_path: Path) -> None:
    run = read_run_file("olmoe", ("model.layers=1", "model.experts=4", "model.hidden=32", "steps=20")).run(256)
    assert (run.kind, run.optimizer) == ("olmoe", adamw.Config())
    assert (run.model.balance_loss, run.model.router_z_loss, run.model.z_loss) == (0.01, 0.001, 0.0)
    small = dataclasses.replace(run.model, moe_backend="dense")
    run = dataclasses.replace(run, model=small, compilation_cache="", evaluation=Evaluation())
    directory = train(run, TextBytes(), str(tmp_path), say=silent).directory
    rows = read_metrics(directory)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] - 0.02
    assert rows[0]["optim/learning_rate/adam"] == pytest.approx(4e-4)
    assert rows[0]["train/router/load_balancing_loss"] > 0
    assert rows[0]["train/router/router_z_loss"] > 0


@pytest.mark.parametrize("decaying", ["all", "matrices"])
def test_steps_equal_those_of_optax(decaying: Any) -> None:
    settings = adamw.Config(learning_rate=0.02, decaying=decaying)
    mask = {name: decaying == "all" or weight.group != "adam" for name, weight in leaves(TABLE).items()}
    assert all(mask.values()) == (decaying == "all")
    adam = optax.adamw(rates_for_optax(settings, 0.02), 0.9, 0.95, 1e-8, weight_decay=0.1, mask=mask)
    params = followed(optax.chain(optax.clip_by_global_norm(1.0), adam), 5)
    ours = trained(settings, 5)[-1]
    for name in mask:
        np.testing.assert_allclose(ours[name], params[name], atol=1e-6, err_msg=name)


def test_steps_equal_those_of_torch(tmp_path: Path) -> None:
    settings = adamw.Config(learning_rate=0.02)
    rates = [float(np.float32(0.02 * share(settings, step, STEPS))) for step in range(5)]
    arguments = {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    history, gradients = trained(settings, 5), [leaves(gradients_at(step)) for step in range(5)]
    theirs = stepped("AdamW", arguments, history[0], gradients, rates, tmp_path, clip=1.0)
    for name, value in jax.device_get(history[-1]).items():
        np.testing.assert_allclose(value, theirs[name], atol=1e-6, err_msg=name)
