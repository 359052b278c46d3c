"""No gradient of a model is accumulated in bf16."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import layers, weights
from datakit.trainer.models.attention.attention import attention
from tests.support.trainer.small_models import MODELS, random_batch

ACCUMULATING = ("reduce_sum", "scatter-add", "cumsum", "psum", "reduce_window_sum", "cumlogsumexp")
BACKENDS = ("tiles", "ragged")


def equations(program: Any) -> Iterator[Any]:
    """Every equation of a program, those of its loops and branches included."""
    for equation in program.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def narrow(program: Any, primitives: tuple[str, ...]) -> set[str]:
    """The program's operations of these kinds that return bf16."""
    return {
        f"{equation.primitive.name} -> {equation.outvars[0].aval}"
        for equation in equations(program.jaxpr)
        if equation.primitive.name in primitives and equation.outvars[0].aval.dtype == jnp.bfloat16
    }


def narrow_sums(module: Any, config: Any) -> set[str]:
    """The long sums of the model's loss and gradients that are not fp32."""
    state, batch = module.initial_state(config), random_batch(config, length=64, segments=2)

    def loss(params: Any) -> Any:
        return training_loss(module, config, state, batch, params)[0]

    params = jax.eval_shape(lambda key: weights.initialize(module.weights(config), key), jax.random.key(0))
    return narrow(jax.make_jaxpr(jax.grad(loss))(params), ACCUMULATING)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*MODELS])
def test_every_long_sum_is_in_fp32(name: str, backend: Any) -> None:
    module, config = MODELS[name]
    backends = {} if name == "dense" else {"moe_backend": backend}
    bfloat16 = dataclasses.replace(config, compute="bfloat16", remat="recompute_all", **backends)
    assert narrow_sums(module, bfloat16) == set()


def test_groups_of_queries_add_their_gradients_of_a_key_in_fp32() -> None:
    def attended(query: Any, key: Any, value: Any) -> Any:
        segments = jnp.ones(key.shape[:2], jnp.int32)
        return jnp.sum(attention(query, key, value, segments, 256).astype(jnp.float32))

    query, key = (jnp.ones((1, 256, heads, 8), jnp.bfloat16) for heads in (2, 1))
    program = jax.make_jaxpr(jax.grad(attended, (1, 2)))(query, key, key)
    assert narrow(program, ("add_any", *ACCUMULATING)) == set()


def test_the_embedding_s_gradient_is_summed_in_fp32() -> None:
    generator = np.random.default_rng(0)
    tokens = np.minimum(generator.zipf(1.1, 32_768), 1_000) - 1  # a few rows get thousands of terms
    arrived = generator.normal(size=(tokens.size, 8)).astype(jnp.bfloat16)
    table = jnp.asarray(generator.normal(size=(1_000, 8)), jnp.float32)

    def looked_up(table: Any) -> Any:
        rows = layers.embed(table, jnp.asarray(tokens)[None], jnp.bfloat16)
        assert rows.dtype == jnp.bfloat16
        return jnp.vdot(rows[0].astype(jnp.float32), arrived.astype(jnp.float32))

    exact = np.zeros(table.shape)
    np.add.at(exact, tokens, arrived.astype(np.float64))
    ours = jax.jit(jax.grad(looked_up))(table)
    error = np.linalg.norm(ours - exact, axis=1) / np.maximum(np.linalg.norm(exact, axis=1), 1e-9)
    assert error.max() < 1e-5
