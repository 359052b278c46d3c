"""Runs whose devices share experts, heads and ids: any devices continue them, and evaluations drop nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from datakit.trainer.checkpoints.candidates import Marker
from datakit.trainer.checkpoints.checkpoint import Writer, restore
from datakit.trainer.device_feed import place
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.models.weights import leaves
from datakit.trainer.train import train, trainer_of
from tests.support.trainer.trainer_runs import TextBytes, checkpoints_of, losses, saving_run, silent, small_run, stopped

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py
CAPACITY = {"capacity_factor": 0.5, "capacity_rows": 4, "capacity_groups": 2}


def with_model(**changes: Any) -> Any:
    """The model of the small run, with other settings."""
    return dataclasses.replace(small_run().model, **changes)


def test_a_checkpoint_fits_every_size_of_the_expert_axis(tmp_path: Path) -> None:
    run = small_run(model=with_model(experts=8))
    trainers = {
        size: trainer_of(dataclasses.replace(run, expert_parallel=size), jax.devices()[:8]) for size in (1, 4, 8)
    }
    with jax.set_mesh(trainers[4].mesh):
        saved = trainers[4].fresh(0)
    folder = str(tmp_path / "checkpoints")
    writer = Writer(run.checkpoint, folder, folder, "a", silent)
    writer.save(saved, Marker(7, "a", {}, {}, {}, True, {}))
    writer.close()
    (found,) = checkpoints_of(str(tmp_path))
    for size in (1, 8):
        restored = leaves(restore(found, trainers[size].like()))
        for path, value in leaves(saved).items():
            np.testing.assert_array_equal(restored[path], value, err_msg=path)
        shards = restored["params/blocks/expert_in"].addressable_shards
        assert {shard.data.shape[1] for shard in shards} == {8 // size}


def test_a_run_continues_without_expert_parallelism(finished: str, tmp_path: Path) -> None:
    stopped(saving_run(expert_parallel=2), tmp_path, 6)
    outcome = train(saving_run(), TextBytes(), str(tmp_path))
    assert outcome.resumed_from == 6
    np.testing.assert_allclose(losses(outcome.directory), losses(finished), atol=1e-3)
    np.testing.assert_allclose(losses(outcome.directory)[:2], losses(finished)[:2], atol=1e-5)


def test_evaluation_drops_nothing_unless_asked_to() -> None:
    text = TextBytes().batch(0)

    def evaluated(model: Any, factor: float | None) -> Any:
        trainer = trainer_of(small_run(model=model), jax.devices()[:2])
        with jax.set_mesh(trainer.mesh):
            state, batch = trainer.fresh(0), place(text, trainer.mesh, 256).batch
            return trainer.evaluate(state["params"], state["model"], batch, capacity=factor)[0]

    usual, dropping = evaluated(small_run().model, None), with_model(**CAPACITY)
    np.testing.assert_array_equal(evaluated(dropping, None), usual)
    assert np.abs(evaluated(dropping, 0.5) - usual).max() > 1e-3


def test_a_run_on_all_axes_drops_and_loses_what_one_device_does(tmp_path: Path) -> None:
    blocks = {"capacity_factor": 0.5, "capacity_rows": 2, "capacity_groups": 2}
    run = small_run(model=with_model(kv_heads=2, **blocks), steps=2)
    split = dataclasses.replace(run, expert_parallel=2, tensor_parallel=2)
    alone = train(run, TextBytes(), str(tmp_path / "1"), devices=jax.devices()[:1]).directory
    many = train(split, TextBytes(), str(tmp_path / "4"), devices=jax.devices()[:4]).directory
    np.testing.assert_allclose(losses(many), losses(alone), atol=1e-5)
    name = "capacity_overflow_rate"
    for ours, theirs in zip(read_metrics(many), read_metrics(alone), strict=True):
        rates = [ours[f"train/router/layer_{layer}/{name}"] for layer in range(2)]
        assert rates == pytest.approx([theirs[f"train/router/layer_{layer}/{name}"] for layer in range(2)])
        assert ours[f"train/router/{name}_mean"] == pytest.approx(np.mean(rates))
        assert min(rates) > 0.4
