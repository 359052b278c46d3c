"""Layers of several kinds are applied in order, compiled once for each kind, and counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer.models import dense, latent_moe, olmoe, weights
from datakit.trainer.models.decoder import ACTIVATIONS, mlp, mlp_weights, scan_layers
from tests.support.trainer.small_models import MODELS, random_batch

PATTERNS = ["aaaa", "baaa", "abab", "aabaab", "abba", "abaa"]


def layer(kind: str, x: Any, weight: Any) -> tuple[Any, Any]:
    """A layer whose result depends on its kind, its weight and all layers before it."""
    return (x * weight if kind == "a" else x + weight), x + 1


def stacks(pattern: str) -> dict[str, Any]:
    """A weight for each layer, stacked by kind."""
    values = np.arange(2.0, 2.0 + len(pattern))
    return {kind: jnp.asarray(values[[own == kind for own in pattern]]) for kind in sorted(set(pattern))}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_layers_of_several_kinds_are_applied_in_order(pattern: str) -> None:
    x, results = jax.jit(lambda x, parts: scan_layers(layer, x, parts, pattern, "none"))(1.0, stacks(pattern))
    expected, found = 1.0, dict[str, list[float]]()
    for number, kind in enumerate(pattern):
        expected, result = layer(kind, expected, 2.0 + number)
        found.setdefault(kind, []).append(result)
    assert float(x) == expected
    assert {kind: list(map(float, values)) for kind, values in results.items()} == found


def test_the_program_does_not_grow_with_depth() -> None:
    def length(pattern: str) -> int:
        return len(
            str(jax.make_jaxpr(lambda x, parts: scan_layers(layer, x, parts, pattern, "none"))(1.0, stacks(pattern)))
        )

    for short, long in (("aa", "a" * 50), ("baa", "b" + "a" * 50), ("abab", "ab" * 50)):
        assert length(long) < 1.1 * length(short)


def products(module: Any, config: Any, length: int) -> float:
    """FLOPs per token of all matrix products in the forward pass's program."""
    batch = random_batch(config, rows=1, length=length)

    def forward(params: Any) -> Any:
        return jnp.sum(module.apply(params, module.initial_state(config), batch, config).losses)

    params = jax.eval_shape(lambda key: weights.initialize(module.weights(config), key), jax.random.key(0))
    return sum(_dots(jax.make_jaxpr(forward)(params).jaxpr)) / length


def _dots(program: Any, times: int = 1) -> Any:
    for equation in program.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            if not contracted:  # scaling by the experts' shares
                continue
            yield 2 * times * np.prod(equation.outvars[0].aval.shape) * inner
        repeats = times * equation.params.get("length", 1) if equation.primitive.name == "scan" else times
        for value in jax.tree.leaves(
            [*equation.params.values()], is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            nested = getattr(value, "jaxpr", value)
            if hasattr(nested, "eqns"):
                yield from _dots(nested, repeats)


@pytest.mark.parametrize("name", ["olmoe", "mixed", "dense", "relu", "latent"])
def test_flops_per_token_are_those_of_the_program(name: str) -> None:
    """The softmax of the attention counts as 3 operations for each score, which are not in the matrix products."""
    module, config = MODELS["dense" if name == "relu" else name]
    config = dataclasses.replace(config, activation="relu") if name == "relu" else config
    length = 32  # a single group of queries, which computes the whole square of scores
    idle = 0.0  # the backend `dense` computes all experts
    if name in ("olmoe", "mixed", "latent"):
        inner = config.latent if name == "latent" else config.hidden
        sparse = config.layers - len(getattr(config, "dense_layers", ()))
        idle = sparse * 6 * inner * config.expert_width * (config.experts - config.experts_per_token)
        if name == "latent":  # its outputs are narrower than its experts, so the backend sums them in one more product
            idle += sparse * 2 * config.experts * inner
    softmax = 3 * length * config.heads * config.layers
    assert module.flops_per_token(config, length) == pytest.approx(products(module, config, length) - idle + softmax)


def test_the_counts_of_published_models_are_right() -> None:
    """Parameters in billions, all and active, as their model cards give them."""
    qwen2 = olmoe.Config(
        151_936, 2048, 24, 16, 16, 128, 60, 4, 1408, query_key_norm="none", shared_width=5632, attention_bias="qkv"
    )
    qwen3 = olmoe.Config(151_936, 2048, 48, 32, 4, 128, 128, 8, 768, query_key_norm="head", renormalize=True)
    for config, total, active in ((qwen2, 14.3, 2.7), (qwen3, 30.5, 3.3)):
        assert weights.parameter_count(olmoe.weights(config)) / 1e9 == pytest.approx(total, rel=0.01)
        assert olmoe.active_parameters(config) / 1e9 == pytest.approx(active, rel=0.02)
    smol = dataclasses.replace(dense.Config(), tied_embeddings=True)
    assert weights.parameter_count(dense.weights(smol)) / 1e6 == pytest.approx(134.5, rel=0.001)
    table = latent_moe.weights(latent_moe.Config())
    expert = [weight.size for path, weight in weights.leaves(table).items() if "/expert_" in path]
    assert sum(expert) == 11 * 256 * 3 * 256 * 512


FORMULAS = {  # activation of a dense MLP -> its result for one projection of width 2 F or F
    "swiglu": lambda y, half: y[..., :half] / (1 + np.exp(-y[..., :half])) * y[..., half:],
    "bilinear": lambda y, half: y[..., :half] * y[..., half:],
    "relu": lambda y, _: np.maximum(y, 0),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_dense_mlp_is_its_formula(activation: str) -> None:
    """Compare with float64; `relu` is relu(x W) W', with a single projection."""
    _, config = MODELS["dense"]
    generator, width = np.random.default_rng(5), config.width
    shapes = {name: weight.shape[1:] for name, weight in mlp_weights(config, 1, width, activation).items()}
    assert shapes == {"mlp_in": (config.hidden, (1 if activation == "relu" else 2) * width), "mlp_out": (width, 32)}
    block = {name: generator.normal(size=shape) for name, shape in shapes.items()}
    x = generator.normal(size=(2, 5, config.hidden))
    ours = mlp(
        jnp.asarray(x, jnp.float32), jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), block), activation
    )
    theirs = FORMULAS[activation](x @ block["mlp_in"], width) @ block["mlp_out"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
