"""A program does not grow with the sequence: its constants stay small."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import grug, layers, olmoe, weights
from datakit.trainer.models.protocol import Tokens
from tests.support.trainer.programs import LARGEST, constants
from tests.support.trainer.small_models import FAMILY, SMALL


def lowered(module: Any, config: Any, length: int) -> Any:
    """The lowered loss and gradients for rows of `length` tokens."""
    state = module.initial_state(config)

    def loss(params: Any, batch: Tokens) -> Any:
        return training_loss(module, config, state, batch, params)[0]

    params = jax.eval_shape(lambda key: weights.initialize(module.weights(config), key), jax.random.key(0))
    tokens: Any = jax.ShapeDtypeStruct((1, length), jnp.int32)
    mask: Any = jax.ShapeDtypeStruct((1, length), bool)
    return jax.jit(jax.grad(loss)).lower(params, Tokens(tokens, tokens, mask))


@pytest.mark.parametrize("length", [4096, 32_768, 131_072])
@pytest.mark.parametrize(("module", "config"), [(grug, SMALL), (olmoe, FAMILY)], ids=["grug", "olmoe"])
def test_no_constant_grows_with_the_sequence(module: Any, config: Any, length: int) -> None:
    long = dataclasses.replace(config, head_width=128, window=length, moe_backend="tiles", remat="recompute_all")
    program = lowered(module, long, length).as_text()
    assert max(constants(program)) <= LARGEST
    assert len(program) < 4 * LARGEST


def test_the_growth_example_of_the_loader_s_document_compiles() -> None:
    config = dataclasses.replace(SMALL, layers=1, window=4096, moe_backend="tiles", remat="recompute_all")
    assert lowered(grug, config, 32_768).compile()


def test_rotary_positions_are_exact_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    table = jax.jit(lambda: layers.rotary_table(131_072, 128, 10_000.0))()
    frequency = 10_000.0 ** -(np.arange(0, 128, 2) / 128)
    angle = np.arange(131_072)[:, None] * frequency
    np.testing.assert_allclose(table[0], np.cos(angle), atol=2e-7)
    np.testing.assert_allclose(table[1], np.sin(angle), atol=2e-7)
    short = jax.jit(lambda: layers.rotary_table(700, 128, 10_000.0))()
    for ours, long in zip(short, table, strict=True):
        np.testing.assert_array_equal(ours, long[:700])
    monkeypatch.setattr(layers, "ROTARY_STRIDE", 7)
    for ours, long in zip(jax.jit(lambda: layers.rotary_table(701, 128, 10_000.0))(), table, strict=True):
        np.testing.assert_allclose(ours, long[:701], atol=4e-7)
