"""MuonH turns matrices in Muon's direction and keeps their norms."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.models.weights import leaves
from datakit.trainer.optimizers import adamh, muonh
from datakit.trainer.optimizers.newton_schulz import orthogonalized
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import (
    TextBytes,
    assert_same_state,
    final_state,
    losses,
    silent,
    stopped,
    tiny_run,
)
from tests.support.trainer.weight_tables import MATRICES, TABLE, gradients_at, norms_of, trained

SETTINGS = muonh.Config(learning_rate=0.05, schedule="constant", warmup=0.0, clip_norm=1e9)


def test_norms_stay() -> None:
    history, table = trained(SETTINGS, 6), leaves(TABLE)
    for name in (*MATRICES, "head"):
        norms = np.stack([norms_of(params[name], table[name]) for params in history])
        np.testing.assert_allclose(norms, np.broadcast_to(norms[0], norms.shape), rtol=2e-6)


def test_the_first_step_is_muons_direction_with_the_step_of_adamh() -> None:
    """At first, momentum and gradient have the same direction."""
    history = trained(SETTINGS, 1)
    for name, gradient in leaves(gradients_at(0)).items():
        if name in MATRICES:
            stack = leaves(TABLE)[name].stack
            expected = adamh.rotated(history[0][name], orthogonalized(gradient, stack), 0.05, stack)
            np.testing.assert_allclose(history[1][name], expected, atol=1e-6, err_msg=name)


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    checkpoints = Checkpoints(interval_minutes=1e9, keep_every=3)
    run = tiny_run(optimizer=muonh.Config(learning_rate=0.02, adam_learning_rate=0.01), checkpoint=checkpoints, steps=6)
    whole = train(run, TextBytes(), str(tmp_path / "whole"), say=silent).directory
    stopped(run, tmp_path / "cut", after=5)
    outcome = train(run, TextBytes(), str(tmp_path / "cut"), say=silent)
    assert outcome.resumed_from == 3
    assert_same_state(final_state(outcome.directory, run), final_state(whole, run))
    assert losses(whole)[-1] < losses(whole)[0]


def test_all_other_weights_and_the_head_are_updated_as_by_adamh() -> None:
    shared = {"learning_rate": 0.05, "schedule": "constant", "warmup": 0.0, "clip_norm": 1e9}
    theirs = trained(adamh.Config(**shared, beta1=0.9, beta2=0.95, epsilon=1e-8), 3)  # type: ignore[arg-type]
    ours = trained(SETTINGS, 3)
    for name in leaves(TABLE):
        if name not in MATRICES:
            np.testing.assert_allclose(ours[-1][name], theirs[-1][name], atol=1e-6, err_msg=name)
        else:
            assert float(jnp.abs(ours[-1][name] - theirs[-1][name]).max()) > 1e-3
