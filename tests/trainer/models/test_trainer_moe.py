"""Experts by every route give the oracle's sums and gradients; routers choose and balance as they say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu_check import compiled_text, dense_buffers, train_speed
from benchmarks.moe_layer import Shape, moe_step
from datakit.trainer.models import expert_sort, expert_tiles, router
from datakit.trainer.models import experts as expert_layer

HIDDEN, WIDTH, EXPERTS, CHOICES = 24, 16, 6, 3


def inputs(tokens: int, experts: int = EXPERTS, choices: int = CHOICES, skew: float = 0.0) -> tuple[Any, ...]:
    """Tokens, their experts and weights, and the experts' matrices; `skew` crowds the first experts."""
    keys = jax.random.split(jax.random.key(tokens + experts), 5)
    logits = jax.random.normal(keys[0], (tokens, experts)) - skew * jnp.arange(experts)
    routing = router.sigmoid_route(logits, jnp.zeros(experts), choices)
    return (
        jax.random.normal(keys[1], (tokens, HIDDEN)),
        routing.expert,
        routing.share,
        jax.random.normal(keys[2], (experts, HIDDEN, 2 * WIDTH)) * HIDDEN**-0.5,
        jax.random.normal(keys[3], (experts, WIDTH, HIDDEN)) * WIDTH**-0.5,
    )


def value_and_gradients(backend: Any, arguments: tuple[Any, ...], gate: str) -> Any:
    """Outputs, and the gradients of x, share and both matrices."""

    def loss(x: Any, share: Any, w_in: Any, w_out: Any) -> Any:
        y = expert_layer.experts(x, arguments[1], share, w_in, w_out, gate, backend)
        return jnp.sum(jnp.sin(y)), y

    x, _, share, w_in, w_out = arguments
    (_, y), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(x, share, w_in, w_out)
    return (y, *gradients)


@pytest.mark.parametrize("backend", ["tiles", "ragged"])
@pytest.mark.parametrize(
    "case",
    [(200, 6, 3, 0.0), (200, 6, 3, 3.0), (1, 4, 1, 0.0), (7, 64, 4, 0.0), (300, 5, 1, 50.0)],
    ids=["even", "skewed", "one-token", "more-experts-than-tokens", "all-to-one"],
)
def test_backends_equal_the_oracle(backend: Any, case: tuple[int, int, int, float]) -> None:
    arguments, gate = inputs(*case), "swiglu" if case[3] else "bilinear"
    for ours, oracle in zip(
        value_and_gradients(backend, arguments, gate), value_and_gradients("dense", arguments, gate), strict=True
    ):
        np.testing.assert_allclose(ours, oracle, atol=2e-5, rtol=1e-4)


def test_bfloat16_stays_near_fp32() -> None:
    x, expert, share, w_in, w_out = inputs(200)
    wide = expert_layer.experts(x, expert, share, w_in, w_out, backend="dense")
    for backend in ("tiles", "ragged"):
        cast = (value.astype(jnp.bfloat16) for value in (x, w_in, w_out))
        narrow_x, narrow_in, narrow_out = cast
        narrow = expert_layer.experts(narrow_x, expert, share, narrow_in, narrow_out, backend=backend)  # type: ignore[arg-type]
        assert narrow.dtype == jnp.bfloat16
        np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=0.1)


def test_tokamax_where_it_is_installed() -> None:
    pytest.importorskip("tokamax")
    arguments = inputs(200)
    for ours, oracle in zip(
        value_and_gradients("tokamax", arguments, "swiglu"),
        value_and_gradients("dense", arguments, "swiglu"),
        strict=True,
    ):
        np.testing.assert_allclose(ours, oracle, atol=2e-5, rtol=1e-4)


def test_auto_is_tiles_on_the_cpu() -> None:
    assert expert_layer.resolve("auto") == "tiles"
    assert expert_layer.resolve("ragged") == "ragged"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=40, max_size=40), st.sampled_from([1, 8]), st.sampled_from([1, 2, 4]))
def test_every_assignment_has_one_row_in_a_tile_of_its_expert(chosen: list[int], tile: int, together: int) -> None:
    expert = jnp.asarray(chosen, jnp.int32)[:, None]
    tiles = jax.jit(expert_tiles.lay_tiles, static_argnums=(1, 2, 3))(expert, 5, tile, together)
    rows = np.asarray(tiles.order.row)[:, 0]
    assert len(set(rows.tolist())) == len(chosen)
    assert np.asarray(tiles.expert)[rows // tile].tolist() == chosen
    assert np.asarray(tiles.order.token)[rows].tolist() == list(range(len(chosen)))
    assert rows.max() < int(tiles.used) * tile
    turns = np.asarray(tiles.expert).reshape(-1, together)[: int(tiles.alone)]
    assert (turns == turns[:, :1]).all()
    assert len(turns) == sum(-(-chosen.count(one) // tile) // together for one in set(chosen))


def test_rows_of_an_expert_keep_the_order_of_tokens() -> None:
    _, expert, *_ = inputs(50)
    order = expert_sort.sort_by_expert(expert, EXPERTS)
    ends = np.cumsum(order.counts)
    for rows in np.split(np.asarray(order.token), ends[:-1]):
        assert (np.diff(rows) > 0).all()
    assert order.counts.sum() == 50 * CHOICES


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False), min_size=30, max_size=30),
    st.integers(1, 30),
)
def test_kth_largest_is_exact(values: list[float], k: int) -> None:
    column = np.asarray(values, np.float32)[:, None]
    assert float(jax.jit(router.kth_largest)(jnp.asarray(column), jnp.int32(k))[0]) == float(np.sort(column[:, 0])[-k])


def reference_bias(logits: np.ndarray, bias: np.ndarray, choices: int) -> np.ndarray:
    """Quantile balancing in float64, by sorting."""
    tokens, experts = logits.shape
    bar = np.sort(logits + bias, axis=1)[:, -(choices + 1)]
    excess = np.sort(logits - bar[:, None], axis=0)[::-1]
    threshold = excess[max(1, tokens * choices // experts) - 1]
    return -threshold - (-threshold).mean()


def test_quantile_balancing_equals_a_float64_reference() -> None:
    generator = np.random.default_rng(0)
    for tokens, experts, choices in ((500, 16, 4), (37, 8, 2), (3, 8, 2)):
        logits = generator.normal(size=(tokens, experts)) * 2
        bias = generator.normal(size=experts)
        ours = router.balanced_bias(
            router.quantile_thresholds(
                jnp.asarray(logits, jnp.float32), jnp.asarray(bias, jnp.float32), choices, jnp.ones(tokens, bool)
            )
        )
        np.testing.assert_allclose(ours, reference_bias(logits, bias, choices), atol=2e-6)
        assert abs(float(ours.mean())) < 1e-6


def test_quantile_balancing_evens_a_skewed_load() -> None:
    generator = np.random.default_rng(1)
    logits = jnp.asarray(generator.normal(size=(4000, 16)) + np.linspace(-2, 2, 16), jnp.float32)
    valid, bias = jnp.ones(4000, bool), jnp.zeros(16)
    spread = []
    for _ in range(6):
        load = router.statistics(logits, router.sigmoid_route(logits, bias, 4).expert, valid).load
        spread.append(float(load.max() * 16))
        bias = router.balanced_bias(router.quantile_thresholds(logits, bias, 4, valid))
    assert spread[0] > 2.0
    assert spread[-1] < 1.1


def test_padding_moves_no_bias_and_no_statistic() -> None:
    generator = np.random.default_rng(2)
    logits = jnp.asarray(generator.normal(size=(120, 8)), jnp.float32)
    valid = jnp.arange(120) < 100
    bias = jnp.zeros(8)
    padded = router.quantile_thresholds(logits, bias, 2, valid)
    np.testing.assert_array_equal(padded, router.quantile_thresholds(logits[:100], bias, 2, valid[:100]))
    expert = router.sigmoid_route(logits, bias, 2).expert
    alone = router.statistics(logits[:100], expert[:100], valid[:100])
    for ours, theirs in zip(router.statistics(logits, expert, valid), alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_bias_chooses_and_never_weighs() -> None:
    logits = jnp.asarray([[3.0, 2.0, 1.0, 0.0]])
    routing = router.sigmoid_route(logits, jnp.asarray([0.0, -9.0, 0.0, 0.0]), 2)
    assert routing.expert[0].tolist() == [0, 2]
    np.testing.assert_allclose(routing.share[0], jax.nn.sigmoid(jnp.asarray([3.0, 1.0])), rtol=1e-6)


def test_even_routing_has_the_known_figures() -> None:
    logits = jnp.log(jnp.tile(jnp.eye(4) * 0.7 + 0.1, (5, 1)))
    stats = router.statistics(logits, router.softmax_route(logits, 1, False).expert, jnp.ones(20, bool))
    np.testing.assert_allclose(router.load_entropy(stats.load), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(router.balance_loss(stats.load, stats.probability, 1), 1.0, rtol=1e-6)


SMALL = Shape(tokens=256, hidden=64, width=32, experts=8, choices=2)


def test_the_compiled_step_holds_no_dense_buffer() -> None:
    found = {
        backend: dense_buffers(compiled_text(SMALL, backend, jnp.float32), SMALL.experts, SMALL.tokens)
        for backend in ("tiles", "dense", "ragged")
    }
    assert found["tiles"] == []
    # The reader finds what it looks for: the oracle's buffers, and those that XLA makes of ragged_dot on a CPU, where
    # nobody should take it.
    assert found["dense"] and found["ragged"]


def test_on_a_gpu_every_product_of_ragged_stays_a_grouped_one() -> None:
    """What is handed to the GPU's compiler; `make gpu-check` reads what that makes of it."""
    step, inputs = moe_step(SMALL, jnp.bfloat16, "ragged")
    program = jax.jit(step).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count('"chlo.ragged_dot"') == 6  # two forward, four backward
    assert program.count("stablehlo.dot_general") == 3  # the router's


def test_the_training_part_of_the_gpu_check_in_small() -> None:
    found = train_speed(sequences=8, length=32, steps=3, flops=1e14, hidden=128)
    assert found["model"]["experts"] == 64
    assert found["tokens_per_second"] == pytest.approx(8 * 32 / found["seconds"])
    assert found["mfu"] is None  # nobody agreed on a CPU's peak
