"""Grouped products by tokamax. Lowering them for an NVIDIA GPU needs neither a GPU nor CUDA."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.trainer.gpu_check import dense_arrays
from benchmarks.trainer.moe_layer import Shape, moe_step
from datakit.trainer.models.experts import grouped_product
from datakit.trainer.models.experts.exchange import run_experts
from datakit.trainer.models.experts.experts import experts
from datakit.trainer.models.experts.grouped_product import kernels_for, tokamax_matmul
from tests.support.trainer.cuda_programs import CALL, PRODUCT, TRITON, kernels, lowered_as_on_gpu

MOSAIC = "mosaic_gpu_v2"
COUNTS = (100, 0, 60, 96)


def inputs(widths: tuple[int, int] = (128, 256), counts: tuple[int, ...] = COUNTS, dtype: Any = "bfloat16") -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    sizes = (sum(counts), widths[0]), (len(counts), *widths)
    rows, weights = (jax.random.normal(key, size, dtype) for key, size in zip(keys, sizes, strict=True))
    return rows, weights, jnp.array(counts)


def value_and_gradients(multiply: Any, rows: Any, weights: Any, count: Any) -> Any:
    def loss(rows: Any, weights: Any) -> Any:
        y = multiply(rows, weights, count)
        return jnp.sum(jnp.sin(y.astype(jnp.float32))), y

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(rows, weights)


def lowered(device: str, *, widths: tuple[int, int] = (128, 256), **others: Any) -> str:
    """The program of a grouped product with its gradients, as lowered on a machine with such a GPU."""
    arrays = inputs(widths, **others)
    step = jax.jit(lambda *given: value_and_gradients(tokamax_matmul, *given))
    return lowered_as_on_gpu(step, *arrays, device=device)


def test_products_and_gradients_equal_those_of_jax() -> None:
    pytest.importorskip("tokamax")
    arrays = inputs(dtype="float32")
    pairs = (jax.tree.leaves(value_and_gradients(multiply, *arrays)) for multiply in (tokamax_matmul, ragged_dot))
    for ours, theirs in zip(*pairs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=1e-4)


def ragged_dot(rows: Any, weights: Any, count: Any) -> Any:
    return jax.lax.ragged_dot(rows, weights, count)


def like_kernels(left: Any, right: Any, count: Any, dimensions: Any, **_: Any) -> Any:
    """A stand-in for tokamax's kernels: what they do not compute is NaN, and rows of no expert take part in sums over
    rows with the factor zero.
    """
    true = jax.lax.ragged_dot_general(left, right, count, dimensions)
    nobody = (jnp.arange(len(left)) >= jnp.sum(count))[:, None]
    if dimensions != grouped_product.BY_WEIGHTS:
        return jnp.where(nobody, jnp.nan, true)
    spoiled = true + jnp.where(nobody, left * 0, 0).T @ jnp.where(nobody, right, 0)
    return jnp.where((count > 0)[:, None, None], spoiled, jnp.nan)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_product, "load_tokamax", lambda: SimpleNamespace(ragged_dot_general=like_kernels))


@pytest.mark.usefixtures("stand_in")
def test_an_expert_without_rows_has_no_gradient() -> None:
    rows, weights, count = inputs(dtype="float32")
    _, (_, by_weights) = value_and_gradients(tokamax_matmul, rows, weights, count)
    assert (by_weights[1] == 0).all()
    assert not jnp.isnan(by_weights).any()


@pytest.mark.usefixtures("stand_in")
def test_rows_of_nobody_do_not_spoil_the_gradients_of_a_layer_with_a_capacity() -> None:
    """A buffer of slots, of which the last third is empty."""
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (30, 8), (4, 8, 16), (4, 8, 8)
    rows, w_in, w_out = (jax.random.normal(key, size) for key, size in zip(keys, sizes, strict=True))
    expert = jnp.where(jnp.arange(30) < 20, jnp.arange(30) % 3, 4)

    def gradients(backend: Any) -> Any:
        def loss(rows: Any, w_in: Any, w_out: Any) -> Any:
            compute = functools.partial(experts, gate="swiglu", backend=backend)
            return jnp.sum(jnp.sin(run_experts(rows, expert, w_in, w_out, compute)[:20]))

        return jax.grad(loss, (0, 1, 2))(rows, w_in, w_out)

    ours, theirs = gradients("tokamax"), gradients("dense")
    np.testing.assert_allclose(ours[0][:20], theirs[0][:20], atol=1e-4, rtol=1e-4)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4, rtol=1e-4)


def test_mosaic_gets_whole_blocks_only() -> None:
    assert kernels_for(512, 256, 1408) == ("mosaic", "triton", "xla")
    for sizes in [(512, 192, 256), (512, 256, 192), (508, 256, 256)]:
        assert kernels_for(*sizes) == ("triton", "xla")


@pytest.mark.parametrize(
    ("device", "others", "calls"),
    [
        ("ampere", {}, {TRITON: 3}),
        ("hopper", {}, {MOSAIC: 3}),
        ("hopper", {"dtype": "float32"}, {TRITON: 3}),
        ("hopper", {"widths": (192, 256)}, {TRITON: 3}),
        ("hopper", {"counts": (100, 0, 61)}, {TRITON: 3}),
        ("blackwell", {}, {MOSAIC: 2, TRITON: 1}),
    ],
    ids=["ampere", "hopper", "hopper-fp32", "hopper-192-wide", "hopper-161-rows", "blackwell"],
)
def test_each_product_is_one_kernel(device: str, others: dict[str, Any], calls: dict[str, int]) -> None:
    pytest.importorskip("tokamax")
    program = lowered(device, **others)
    assert Counter(CALL.findall(program)) == calls
    assert "chlo.ragged_dot" not in program
    assert "stablehlo.dot_general" not in program


def test_triton_kernels_multiply_in_bf16_and_add_in_fp32() -> None:
    pytest.importorskip("tokamax")
    found = [PRODUCT.findall(code) for code in kernels(lowered("ampere"))]
    assert len(found) == 3
    assert {product for products in found for product in products} == {("bf16", "bf16", "f32")}


@pytest.mark.parametrize("device", ["ampere", "hopper", "blackwell"])
def test_a_layer_gives_the_gpu_compiler_no_dense_array(device: str) -> None:
    """No array has an axis of all experts, one of tokens or rows, and one of a width."""
    pytest.importorskip("tokamax")
    shape = Shape(tokens=320, hidden=128, width=128, experts=8, choices=2)
    step, arrays = moe_step(shape, jnp.bfloat16, "tokamax")
    program = lowered_as_on_gpu(step, *arrays, device=device)
    assert len(CALL.findall(program)) == 6  # two products, each with two gradients
    assert dense_arrays(program, shape.experts, shape.tokens) == []
    step, arrays = moe_step(shape, jnp.bfloat16, "dense")
    assert dense_arrays(
        lowered_as_on_gpu(step, *arrays, device=device), shape.experts, shape.tokens
    )  # the search works


def test_options_of_this_command_do_not_disturb_tokamax() -> None:
    pytest.importorskip("tokamax")
    code = (
        "import sys; sys.argv = ['datakit', 'train', 'demo', '--set', 'steps=3']; import jax.numpy as jnp\n"
        "from datakit.trainer.models.experts.grouped_product import tokamax_matmul\n"
        "print(tokamax_matmul(jnp.ones((8, 8)), jnp.ones((2, 8, 4)), jnp.array([4, 4])).sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "256.0\n", done.stderr
    assert "Autotuning" not in done.stderr
