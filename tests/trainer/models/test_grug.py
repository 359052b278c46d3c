"""Checks properties every language model must have: causality, separate documents, equal results by every route."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import grug, layers, olmoe, weights
from datakit.trainer.models.attention import blocked
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree, leaves
from tests.support.trainer.small_models import MODELS, SMALL, dense, encoded, random_batch


@functools.cache
def parameters(config: Any, module: Any = grug) -> Tree:
    """Fresh parameters, nonzero even where training starts at zero."""
    params = jax.jit(lambda key: weights.initialize(module.weights(config), key))(jax.random.key(1))
    if "head_gate" in params["blocks"]:
        params["blocks"]["head_gate"] = 0.3 * jax.random.normal(jax.random.key(2), params["blocks"]["head_gate"].shape)
    return params


@functools.cache
def encoder(config: Any, module: Any, block: int) -> Any:
    """The compiled forward pass up to the final hidden states; `block` is `blocked.BLOCK` while tracing."""
    return jax.jit(lambda p, b: encoded(module, p, b, config))


def hidden_states(config: Any, batch: Tokens, module: Any = grug) -> Any:
    """The final hidden states."""
    return encoder(config, module, blocked.BLOCK)(parameters(config, module), batch)


def loss_and_gradients(
    config: Any, batch: Tokens, params: Tree | None = None, module: Any = grug
) -> tuple[Any, dict[str, Any]]:
    """The training loss and its gradients by path."""

    def loss(params: Tree, batch: Tokens) -> Any:
        return training_loss(module, config, module.initial_state(config), batch, params)[0]

    params = parameters(config, module) if params is None else params
    value, gradients = jax.jit(jax.value_and_grad(loss))(params, batch)
    return value, leaves(gradients)


@functools.cache
def plain_result() -> tuple[Any, dict[str, Any]]:
    """Loss and gradients of SMALL by the plainest route."""
    return loss_and_gradients(SMALL, random_batch(SMALL, segments=2))


def assert_same(ours: tuple[Any, dict[str, Any]], theirs: tuple[Any, dict[str, Any]], tolerance: float) -> None:
    """Equal losses and gradients, relative to each gradient's largest entry."""
    np.testing.assert_allclose(ours[0], theirs[0], rtol=tolerance)
    for path, value in theirs[1].items():
        limit = tolerance * np.abs(value).max() + 1e-12
        np.testing.assert_allclose(ours[1][path], value, atol=limit, rtol=0, err_msg=path)


@pytest.mark.parametrize(("module", "config"), [*MODELS.values()], ids=[*MODELS])
def test_no_position_sees_later_ones(module: Any, config: Any) -> None:
    batch = random_batch(config)
    changed = batch._replace(tokens=batch.tokens.at[:, 25].add(1) % config.vocabulary)
    before, after = hidden_states(config, batch, module), hidden_states(config, changed, module)
    np.testing.assert_array_equal(before[:, :25], after[:, :25])
    assert np.abs(before[:, 25:] - after[:, 25:]).max(axis=(0, 2)).min() > 1e-4


@pytest.mark.parametrize(("module", "config"), [*MODELS.values()], ids=[*MODELS])
def test_no_document_sees_another(module: Any, config: Any) -> None:
    batch = random_batch(config, segments=3)
    first = batch.segments == 1
    changed = batch._replace(tokens=jnp.where(first, (batch.tokens + 5) % config.vocabulary, batch.tokens))
    before, after = hidden_states(config, batch, module), hidden_states(config, changed, module)
    np.testing.assert_array_equal(before[~first], after[~first])
    assert np.abs(before[first] - after[first]).max() > 1e-2


def test_a_document_ignores_its_position() -> None:
    batch = random_batch(SMALL, rows=1, segments=2)
    border = int(jnp.argmax(batch.segments[0] == 2))
    alone = Tokens(batch.tokens[:, border:], batch.segments[:, border:], batch.loss_mask[:, border:])
    np.testing.assert_allclose(
        hidden_states(SMALL, batch)[:, border:], hidden_states(SMALL, alone), atol=3e-4, rtol=1e-4
    )


def test_attention_ends_at_the_window() -> None:
    one_layer = dense(SMALL, layers=1, window=16)  # the only layer has half the window
    batch = random_batch(one_layer)
    changed = batch._replace(tokens=batch.tokens.at[:, 10].add(1) % SMALL.vocabulary)
    moved = np.abs(hidden_states(one_layer, batch) - hidden_states(one_layer, changed)).max(axis=(0, 2)) > 0
    assert np.flatnonzero(moved).tolist() == list(range(10, 10 + 8))


@pytest.mark.parametrize(
    ("policy", "backend"), [("recompute_all", "tiles"), ("save_moe", "tiles"), ("save_moe", "ragged")]
)
def test_recomputing_changes_nothing(policy: Any, backend: Any) -> None:
    config = dataclasses.replace(SMALL, moe_backend=backend, remat=policy)
    assert_same(loss_and_gradients(config, random_batch(config, segments=2)), plain_result(), 1e-5)


def test_remat_policies_save_memory() -> None:
    def saved(policy: Any) -> int:
        config = dataclasses.replace(SMALL, remat=policy, layers=2, moe_backend="tiles")
        batch, params = random_batch(config), parameters(config)

        def loss(params: Tree) -> Any:
            return jnp.sum(grug.encode(params, grug.initial_state(config), batch, config)[0])

        _, pull = jax.eval_shape(lambda p: jax.vjp(loss, p), params)
        return sum(leaf.size for leaf in jax.tree.leaves(pull))

    assert saved("recompute_all") < saved("save_moe") < saved("none")


def test_the_scan_equals_a_loop_over_layers() -> None:
    batch, params, state = random_batch(SMALL, segments=2), parameters(SMALL), grug.initial_state(SMALL)

    @jax.jit
    def loop(params: Tree) -> Any:
        x = grug._normed(params["embed"][batch.tokens], params, "embed_norm", SMALL)
        rotary = layers.rotary_table(batch.tokens.shape[1], SMALL.head_width, SMALL.rope_theta)
        for layer, window in enumerate(grug.windows(SMALL)):
            block = {name: value[layer] for name, value in params["blocks"].items()}
            bias = {name: value[layer] for name, value in state.items()}
            normed = grug._normed(x, block, "attention_norm", SMALL)
            x = x + grug.attend(normed, block, batch.segments, window, rotary, SMALL)[0]
            normed = grug._normed(x, block, "mlp_norm", SMALL)
            x = x + grug.feed_forward(normed, block, bias, batch.segments > 0, SMALL)[0]
        return grug._normed(x, params, "final_norm", SMALL)

    np.testing.assert_allclose(loop(params), hidden_states(SMALL, batch), atol=1e-5, rtol=1e-5)


def test_query_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dense(SMALL, window=20)
    batch = random_batch(config, segments=2)
    small_blocks = loss_and_gradients(config, batch)
    for block in (40, 16):  # all at once; two whole blocks and a rest
        monkeypatch.setattr(blocked, "BLOCK", block)
        assert_same(loss_and_gradients(config, batch), small_blocks, 1e-5)


def test_loss_pieces_change_nothing() -> None:
    batch = random_batch(SMALL, segments=2)
    pieces = loss_and_gradients(dataclasses.replace(SMALL, loss_piece=8), batch)
    assert_same(pieces, plain_result(), 1e-5)


def test_a_dense_model_is_one_without_experts() -> None:
    config = dense(SMALL)
    value, gradients = loss_and_gradients(config, random_batch(config))
    assert np.isfinite(value)
    assert not any("expert_" in path or "router" in path for path in gradients)
    assert grug.active_parameters(config) == weights.parameter_count(grug.weights(config))


def test_bilinear_experts_have_no_nonlinearity() -> None:
    batch = random_batch(SMALL)
    bilinear = hidden_states(dataclasses.replace(SMALL, expert_gate="bilinear"), batch)
    assert np.abs(bilinear - hidden_states(SMALL, batch)).max() > 1e-2
    doubled = layers.bilinear_gate(2 * jnp.arange(8.0))
    np.testing.assert_array_equal(doubled, 4 * layers.bilinear_gate(jnp.arange(8.0)))


@pytest.mark.parametrize(
    ("name", "compute", "replicas", "backend"),
    [
        ("grug", "float32", 2, "tiles"),
        ("grug", "bfloat16", 1, "dense"),
        ("mixed", "float32", 2, "tiles"),
        ("latent", "float32", 1, "tiles"),
    ],
)
def test_eight_devices_compute_what_one_does(name: str, compute: Any, replicas: int, backend: Any) -> None:
    module, config = MODELS[name]
    depth = 4 if name == "mixed" else 2
    config = dataclasses.replace(config, compute=compute, remat="save_moe", layers=depth, moe_backend=backend)
    batch, params = random_batch(config, rows=8, segments=2), parameters(config, module)
    one = loss_and_gradients(config, batch, params, module)
    mesh = weights.make_mesh(replicas)
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, weights.shardings(module.weights(config), mesh))
        many = loss_and_gradients(config, batch, placed, module)
    assert_same(many, one, 2e-5 if compute == "float32" else 5e-2)


def test_router_biases_do_not_depend_on_the_mesh() -> None:
    batch, params = random_batch(SMALL, rows=8), parameters(SMALL)
    state = grug.initial_state(SMALL)
    run = jax.jit(lambda p, b: grug.apply(p, state, b, SMALL).state["router_bias"])
    alone = run(params, batch)
    mesh = weights.make_mesh()
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, weights.shardings(grug.weights(SMALL), mesh))
        np.testing.assert_allclose(run(placed, batch), alone, atol=2e-5)


def test_impossible_configs_say_what_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"heads .4. must be a multiple of kv_heads .3."):
        dataclasses.replace(SMALL, kv_heads=3)
    with pytest.raises(UsageError, match="experts_per_token"):
        dataclasses.replace(SMALL, experts_per_token=8)
    with pytest.raises(UsageError, match="must be even"):
        dataclasses.replace(SMALL, head_width=7)
    with pytest.raises(UsageError, match=r"weight blocks/.* cannot be split evenly over 8 devices"):
        weights.shardings(grug.weights(dataclasses.replace(SMALL, hidden=36)), weights.make_mesh())
    with pytest.raises(UsageError, match=r"replicas \(3\)"):
        weights.make_mesh(3)


def test_every_weight_has_the_recipe_s_group() -> None:
    table = leaves(grug.weights(dataclasses.replace(grug.Config(), layers=2)))
    groups = {path: weight.group for path, weight in table.items()}
    adam = {"embed", "blocks/head_gate"} | {path for path in table if path.endswith("_norm")}
    assert {path for path, group in groups.items() if group == "adam"} == adam
    experts = {f"blocks/{name}" for name in ("expert_in", "expert_out", "shared_in", "shared_out")}
    assert {path for path, group in groups.items() if group == "adamh_expert"} == experts
    assert {path for path, group in groups.items() if group == "router"} == {"blocks/router"}
    assert table["blocks/expert_in"].stack == 2
    assert table["head"].stack == 0


def test_flops_are_those_of_the_matrix_products() -> None:
    config = grug.Config(vocabulary=64, hidden=32, layers=1, heads=2, kv_heads=1, head_width=16, experts=0, gate_rank=1)
    dense = 6 * 32 * 1024 + 2 * 32 * (32 + 32) + 2 * 32 * 32 + 128 * (4 * 32 + 3 * 2)
    assert grug.flops_per_token(config, 128, with_head=False) == dense
    assert grug.flops_per_token(config, 128) == dense + 2 * 32 * 64
    assert olmoe.active_parameters(olmoe.Config()) == pytest.approx(1.28e9, rel=0.01)  # "1B-7B"
    assert weights.parameter_count(olmoe.weights(olmoe.Config())) == pytest.approx(6.92e9, rel=0.01)
