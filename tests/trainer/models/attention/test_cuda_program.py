"""The training step that is lowered for an NVIDIA GPU. Lowering needs neither a GPU nor CUDA."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from benchmarks.trainer.gpu_check import dense_arrays
from datakit.trainer.models import grug, olmoe
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import make_mesh
from datakit.trainer.optimizers import adamh, adamw
from datakit.trainer.step import Trainer
from tests.support.trainer.cuda_programs import CALL, PRODUCT, TRITON, kernels, lowered_as_on_gpu, named_kernels
from tests.support.trainer.programs import LARGEST, constants
from tests.support.trainer.small_models import FAMILY, SMALL

LENGTH = 448  # no other axis of the models has this size
SQUARE = re.compile(rf"tensor<(?:\d+x)*{LENGTH}x(?:\d+x)?{LENGTH}x[^>]*>")
XLA_PRODUCT = re.compile(r"stablehlo\.dot_general (?P<how>.*) : \((?P<from>.*)\) -> (?P<to>.*)")
RAGGED_PRODUCT = re.compile(r'"chlo\.ragged_dot".* : \((?P<from>.*)\) -> (?P<to>.*)')
TENSOR = re.compile(r"tensor<([\dx]*)x(\w+)>")
MODELS = {"grug": (grug, dataclasses.replace(SMALL, window=LENGTH), adamh), "olmoe": (olmoe, FAMILY, adamw)}
ATTENTION = {"attention": 2, "attention_to_query": 3, "attention_to_keys": 4}  # kernel -> its products


class Product(NamedTuple):
    """A product that XLA computes: types and axes of both operands and of the result."""

    types: tuple[str, ...]
    axes: tuple[tuple[int, ...], ...]
    precise: bool


def step(name: str, **changes: Any) -> tuple[Any, tuple[Any, ...]]:
    """A training step of a model, not yet traced, and what it is given."""
    model, config, optimizer = MODELS[name]
    config = dataclasses.replace(config, head_width=16, remat="recompute_all", **changes)
    trainer = Trainer(model, config, optimizer.Config().constants(), make_mesh(devices=jax.devices()[:1]))
    tokens: Any = jax.ShapeDtypeStruct((2, LENGTH), jnp.int32)
    batch = Tokens(tokens, tokens, jax.ShapeDtypeStruct((2, LENGTH), bool))  # type: ignore[arg-type]
    return trainer, (trainer.like(), batch, trainer.rates_like())


@functools.cache
def program(name: str = "grug", attention: Any = "pallas", compute: Any = "bfloat16") -> str:
    """A training step, lowered for CUDA. Its experts are given to XLA, which needs no package."""
    trainer, arrays = step(name, compute=compute, moe_backend="ragged", attention_backend=attention)
    with jax.set_mesh(trainer.mesh):
        return trainer.advance.trace(*arrays, watch=False).lower(lowering_platforms=("cuda",)).as_text()


def xla_products(text: str, pattern: re.Pattern[str]) -> list[Product]:
    """The products of this kind in a program."""
    found = []
    for match in pattern.finditer(text):
        tensors = [tensor for tensor in TENSOR.findall(match["from"] + match["to"]) if tensor[1] != "i32"]
        axes = tuple(tuple(map(int, sizes.split("x"))) for sizes, _ in tensors)
        found.append(Product(tuple(kind for _, kind in tensors), axes, "HIGHEST" in match[0]))
    return found


def test_attention_runs_in_three_kernels() -> None:
    assert set(named_kernels(program())) == set(ATTENTION)
    assert set(CALL.findall(program())) == {TRITON}


def test_no_array_holds_all_pairs_of_positions() -> None:
    assert SQUARE.search(program(attention="dense"))  # the pattern finds them where they are
    assert not SQUARE.search(program())


def test_constants_are_small() -> None:
    assert max(constants(program())) <= LARGEST


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_kernels_multiply_in_the_model_s_type_and_add_in_fp32(compute: Any) -> None:
    narrow = {"bfloat16": "bf16", "float32": "f32"}[compute]
    for name, code in named_kernels(program(compute=compute)).items():
        products = PRODUCT.findall(code)
        assert len(products) == ATTENTION[name]
        assert set(products) == {(narrow, narrow, "f32")}, name
        assert compute == "bfloat16" or "tf32" not in code


@pytest.mark.parametrize("name", MODELS)
def test_only_the_router_multiplies_in_fp32(name: str) -> None:
    """In a bf16 model, XLA multiplies bf16, except for the router's logits, which are exact to fp32."""
    text = program(name)
    products = xla_products(text, XLA_PRODUCT)
    assert len(products) == text.count("stablehlo.dot_general")
    wide = [product for product in products if product.types != ("bf16", "bf16", product.types[2])]
    assert len(wide) == 4  # forward, forward again (recompute_all), both gradients
    for product in wide:
        assert product.types == ("f32", "f32", "f32") and product.precise
        assert any(8 in axes for axes in product.axes)  # of the experts
    assert not any(product.precise for product in products if product not in wide)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_their_gradient_are_sums_in_fp32(name: str) -> None:
    logits = [product for product in xla_products(program(name), XLA_PRODUCT) if 97 in product.axes[2]]
    assert Counter(product.types for product in logits) == {("bf16", "bf16", "f32"): 2}


@pytest.mark.parametrize("name", MODELS)
def test_experts_multiply_bf16(name: str) -> None:
    text = program(name)
    products = xla_products(text, RAGGED_PRODUCT)
    assert len(products) == text.count('"chlo.ragged_dot"') > 0
    assert {product.types for product in products} == {("bf16", "bf16", "bf16")}


@pytest.mark.parametrize("name", MODELS)
def test_with_tokamax_every_grouped_product_is_a_kernel_and_no_array_is_dense(name: str) -> None:
    pytest.importorskip("tokamax")
    trainer, arrays = step(name, compute="bfloat16", moe_backend="tokamax", attention_backend="pallas")
    with jax.set_mesh(trainer.mesh):
        text = lowered_as_on_gpu(trainer.advance, *arrays, device="hopper", watch=False)
    grouped = [PRODUCT.findall(code) for code in kernels(text) if "module @attention" not in code]
    assert len(grouped) == len(xla_products(program(name), RAGGED_PRODUCT))
    assert {product for products in grouped for product in products} == {("bf16", "bf16", "f32")}
    assert "chlo.ragged_dot" not in text
    assert dense_arrays(text, experts=8, rows=2 * LENGTH) == []
