"""Parameters follow from the table alone."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from datakit.trainer.models import grug, weights
from datakit.trainer.models.weights import leaves

SMALL = grug.Config(
    vocabulary=97,
    hidden=32,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=8,
    experts=8,
    experts_per_token=2,
    expert_width=24,
    shared_width=32,
    gate_rank=8,
    window=64,
    compute="float32",
    remat="none",
    init_scale=2.0,  # larger than in training, so that every part of the model matters
)


def test_parameters_depend_only_on_their_path() -> None:
    table = grug.weights(SMALL)
    mesh = weights.make_mesh(2)
    alone = leaves(jax.jit(lambda key: weights.initialize(table, key))(jax.random.key(3)))
    placed = jax.jit(lambda key: weights.initialize(table, key), out_shardings=weights.shardings(table, mesh))(
        jax.random.key(3)
    )
    for path, value in leaves(placed).items():
        np.testing.assert_array_equal(value, alone[path], err_msg=path)
    dense = grug.weights(dataclasses.replace(SMALL, experts=0))
    fewer = leaves(jax.jit(lambda key: weights.initialize(dense, key))(jax.random.key(3)))
    for path, value in fewer.items():
        np.testing.assert_array_equal(value, alone[path], err_msg=path)
