"""Gradients are clipped per family."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer.models.weights import leaves
from datakit.trainer.optimizers import adamh, adamw
from datakit.trainer.optimizers.clipping import clipped
from tests.support.trainer.weight_tables import MATRICES, TABLE, gradients_at

CALM = gradients_at(0, 1e-3)
SPIKE = CALM | {"embed": CALM["embed"] * 1e6}


def test_a_spike_shrinks_only_its_family() -> None:
    ours, norms = clipped(SPIKE, TABLE, adamh.Config(clip_norm=2.0))
    for name in (*MATRICES, "head"):
        np.testing.assert_array_equal(leaves(ours)[name], leaves(CALM)[name])
    assert float(jnp.abs(leaves(ours)["blocks/router"]).max()) < float(jnp.abs(CALM["blocks"]["router"]).max())
    family = np.sqrt(sum(float(jnp.sum(leaves(ours)[name] ** 2)) for name in ("embed", "gain", "blocks/router")))
    assert family == pytest.approx(2.0, rel=1e-5)
    assert norms.keys() == {"adam", "adamh", "adamh_expert"}
    assert float(norms["adam"]) > 100


def test_with_adamw_all_weights_form_one_family() -> None:
    ours, norms = clipped(SPIKE, TABLE, adamw.Config())
    assert norms.keys() == {"all"}
    for name, value in leaves(ours).items():
        np.testing.assert_allclose(value, leaves(SPIKE)[name] / norms["all"], rtol=1e-5)
