"""Every backend computes the attention of the oracle, and no position sees what it must not see."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datakit.trainer.models.attention import attention as room
from datakit.trainer.models.attention import blocked, pallas_kernel

BLOCK = 8  # instead of 64, so that short sequences have many blocks
KERNELS = ["blocked", "pallas"]  # on a CPU, the Triton kernels are interpreted
FIRST_SEEN = jax.jit(room.first_seen)
SHAPES = [(2, 24, 4, 2, 4), (1, 21, 6, 1, 8), (3, 8, 3, 3, 4), (1, 5, 2, 1, 4)]  # B, S, N, M, H


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCK", BLOCK)
    monkeypatch.setattr(pallas_kernel, "BLOCK", BLOCK)


def drawn(shape: tuple[int, ...], seed: int = 0) -> tuple[Any, ...]:
    """A query, key, value and cotangent."""
    batch, length, heads, kv_heads, width = shape
    generator = np.random.default_rng(seed)
    sizes = ((batch, length, count, width) for count in (heads, kv_heads, kv_heads, heads))
    return tuple(jnp.asarray(generator.normal(size=size), jnp.float32) for size in sizes)


@cache
def with_gradients(backend: Any) -> Any:
    """The jitted output and gradients of a backend; the window is a traced value."""

    @jax.jit
    def compute(inputs: tuple[Any, ...], segments: Any, window: Any) -> Any:
        *projections, cotangent = inputs
        output, backward = jax.vjp(
            partial(room.attention, segments=segments, window=window, backend=backend), *projections
        )
        return output, *backward(cotangent)

    return compute


@pytest.mark.parametrize("backend", KERNELS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(st.sampled_from(SHAPES), st.integers(1, 30), st.integers(0, 99), st.sampled_from([1, 3, 9]))
def test_kernels_give_the_oracle_s_results_and_gradients(
    backend: str, shape: tuple[int, ...], window: int, seed: int, documents: int
) -> None:
    segments = np.sort(np.random.default_rng(seed).integers(0, documents, shape[:2]))[:, ::-1].astype(np.int32)
    inputs = drawn(shape, seed), jnp.asarray(segments), jnp.int32(window)
    for ours, oracle in zip(with_gradients(backend)(*inputs), with_gradients("dense")(*inputs), strict=True):
        np.testing.assert_allclose(ours, oracle, atol=2e-5)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=200), st.integers(1, 250))
@settings(max_examples=30, deadline=None)
def test_a_position_sees_from_the_start_of_its_document_or_window(row: list[int], window: int) -> None:
    row = (row * 200)[:200]  # one length, so one compilation
    starts = [max(t for t in range(s + 1) if t == 0 or row[t] != row[t - 1]) for s in range(len(row))]
    expected = [max(start, s - window + 1) for s, start in enumerate(starts)]
    assert FIRST_SEEN(jnp.asarray([row]), window)[0].tolist() == expected


@pytest.mark.parametrize("backend", KERNELS)
def test_blocks_outside_the_window_are_not_read(backend: Any) -> None:
    inputs, segments, window = drawn((1, 64, 2, 1, 4)), jnp.ones((1, 64), jnp.int32), jnp.int32(9)
    expected = with_gradients("dense")(inputs, segments, window)
    for at in range(0, 64, 3 * BLOCK):
        seen = (jnp.arange(64) >= max(0, at - 8) // BLOCK * BLOCK) & (jnp.arange(64) < at + BLOCK)
        own = (jnp.arange(64) >= at) & (jnp.arange(64) < at + BLOCK)
        query, *keys, cotangent = inputs
        broken = query, *(jnp.where(seen[None, :, None, None], x, jnp.nan) for x in keys), cotangent
        for ours, oracle in zip(with_gradients(backend)(broken, segments, window)[:2], expected[:2], strict=True):
            np.testing.assert_allclose(ours[:, own], oracle[:, own], atol=2e-5)


@pytest.mark.parametrize("backend", KERNELS)
def test_queries_that_do_not_see_a_block_of_keys_are_not_read_for_its_gradient(backend: Any) -> None:
    inputs, segments, window = drawn((1, 64, 2, 1, 4)), jnp.ones((1, 64), jnp.int32), jnp.int32(9)
    expected = with_gradients("dense")(inputs, segments, window)
    query, key, value, cotangent = inputs
    far = (jnp.arange(64) < 3 * BLOCK)[None, :, None, None]  # no query from block 3 on is seen from block 0 or 1
    broken = query, key, value, jnp.where(far, cotangent, jnp.nan)
    for ours, oracle in zip(with_gradients(backend)(broken, segments, window)[2:], expected[2:], strict=True):
        np.testing.assert_allclose(ours[:, : 2 * BLOCK], oracle[:, : 2 * BLOCK], atol=2e-5)


def test_the_layers_of_one_scan_can_have_different_windows() -> None:
    query, key, value, _ = drawn((1, 24, 2, 2, 4))
    segments = jnp.ones((1, 24), jnp.int32)

    def layer(_: None, window: Any) -> tuple[None, Any]:
        return None, room.attention(query, key, value, segments, window)

    _, outputs = jax.jit(lambda windows: jax.lax.scan(layer, None, windows))(jnp.asarray([3, 24]))
    for window, output in zip((3, 24), outputs, strict=True):
        expected = room.attention(query, key, value, segments, window, "dense")
        np.testing.assert_allclose(output, expected, atol=2e-5)


@pytest.mark.parametrize("backend", KERNELS)
def test_results_keep_the_type_of_the_inputs(backend: Any) -> None:
    segments, window = jnp.ones(SHAPES[0][:2], jnp.int32), jnp.int32(24)
    narrow = tuple(x.astype(jnp.bfloat16) for x in drawn(SHAPES[0]))
    exact = tuple(x.astype(jnp.float32) for x in narrow)
    results = with_gradients(backend)(narrow, segments, window), with_gradients("dense")(exact, segments, window)
    for ours, oracle in zip(*results, strict=True):
        assert ours.dtype == jnp.bfloat16
        assert jnp.max(jnp.abs(ours - oracle)) < 3e-2 * jnp.max(jnp.abs(oracle))


def test_auto_chooses_the_kernel_of_the_machine_and_warns_without_one() -> None:
    assert room.resolve("auto") == "blocked"
    assert room.resolve("dense") == "dense"
    assert room.automatic("gpu") == "pallas"
    with pytest.warns(UserWarning, match="no attention kernel for the platform tpu"):
        assert room.automatic("tpu") == "blocked"
