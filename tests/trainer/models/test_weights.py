"""Parameters follow from the table alone."""

from __future__ import annotations

import jax
import numpy as np

from datakit.trainer.models import grug, weights
from datakit.trainer.models.weights import leaves
from tests.support.trainer.small_models import SMALL, dense


def test_parameters_depend_only_on_their_path() -> None:
    table = grug.weights(SMALL)
    mesh = weights.make_mesh(2)
    alone = leaves(jax.jit(lambda key: weights.initialize(table, key))(jax.random.key(3)))
    placed = jax.jit(lambda key: weights.initialize(table, key), out_shardings=weights.shardings(table, mesh))(
        jax.random.key(3)
    )
    for path, value in leaves(placed).items():
        np.testing.assert_array_equal(value, alone[path], err_msg=path)
    without = grug.weights(dense(SMALL))
    fewer = leaves(jax.jit(lambda key: weights.initialize(without, key))(jax.random.key(3)))
    for path, value in fewer.items():
        np.testing.assert_array_equal(value, alone[path], err_msg=path)
