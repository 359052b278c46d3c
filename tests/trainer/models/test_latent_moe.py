"""The layer of LatentMoE computes its formula, written here as a loop over tokens and experts in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from datakit.trainer.models import latent_moe
from tests.support.trainer.small_models import LATENT

ROWS, LENGTH = 2, 9


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def activated(gate_up: Any, gate: str) -> Any:
    """The first half, through silu for SwiGLU, times the second half."""
    first, second = gate_up[: len(gate_up) // 2], gate_up[len(gate_up) // 2 :]
    return (first * sigmoid(first) if gate == "swiglu" else first) * second


def chosen(x: Any, block: Any, bias: Any) -> list[int]:
    """The experts of one token: those with the largest sums of logit and bias."""
    scores = [float(x @ block["router"][:, expert]) + bias[expert] for expert in range(LATENT.experts)]
    return sorted(range(LATENT.experts), key=lambda expert: -scores[expert])[: LATENT.experts_per_token]


def formula(x: Any, block: Any, bias: Any, gate: str) -> Any:
    """The output of the layer for one token."""
    shared = activated(x @ block["shared_in"], gate) @ block["shared_out"]
    latent, routed = x @ block["latent_down"], np.zeros(LATENT.latent)
    for expert in chosen(x, block, bias):
        share = sigmoid(x @ block["router"][:, expert])
        routed += share * (activated(latent @ block["expert_in"][expert], gate) @ block["expert_out"][expert])
    return shared + routed @ block["latent_up"]


def random_layer() -> tuple[Any, Any, Any]:
    """Hidden states, the weights of one layer, and router biases that decide about many choices."""
    generator = np.random.default_rng(3)
    shapes = {name: weight.shape[1:] for name, weight in latent_moe.weights(LATENT)["blocks"].items()}
    block = {name: generator.normal(0, shape[-1] ** -0.25, shape) for name, shape in shapes.items()}
    return generator.normal(size=(ROWS, LENGTH, LATENT.hidden)), block, generator.normal(0, 3, LATENT.experts)


def layer(x: Any, block: Any, bias: Any, config: latent_moe.Config) -> tuple[Any, Any]:
    """The output of the layer, and the numbers of tokens of the experts. The last token of each row is padding."""
    narrow = {name: jnp.asarray(value, jnp.float32) for name, value in (block | {"x": x, "bias": bias}).items()}
    valid = jnp.arange(LENGTH)[None].repeat(ROWS, 0) < LENGTH - 1
    y, (_, sums) = latent_moe.feed_forward(narrow["x"], narrow, {"router_bias": narrow["bias"]}, valid, config)
    return np.asarray(y), np.asarray(sums.assignments)


@pytest.mark.parametrize("backend", ["dense", "tiles", "ragged"])
@pytest.mark.parametrize("gate", ["swiglu", "bilinear"])
def test_the_layer_is_its_formula(gate: Any, backend: Any) -> None:
    x, block, bias = random_layer()
    ours, assignments = layer(x, block, bias, dataclasses.replace(LATENT, expert_gate=gate, moe_backend=backend))
    theirs = np.array([[formula(token, block, bias, gate) for token in row] for row in x])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
    picks = [expert for row in x for token in row[:-1] for expert in chosen(token, block, bias)]
    assert assignments.tolist() == np.bincount(picks, minlength=LATENT.experts).tolist()


def test_biases_choose_experts_but_do_not_weight_them() -> None:
    x, block, bias = random_layer()
    picks, others = ([chosen(token, block, by) for row in x for token in row] for by in (bias, 0 * bias))
    assert sum(map(set.isdisjoint, map(set, picks), map(set, others))) > 0
    moved, _ = layer(x, block, bias + 7, LATENT)  # the same for all experts
    np.testing.assert_allclose(moved, layer(x, block, bias, LATENT)[0], rtol=1e-5, atol=1e-4)
