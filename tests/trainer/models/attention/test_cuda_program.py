"""The training step that is lowered for an NVIDIA GPU. Lowering needs neither a GPU nor CUDA."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from jaxlib.triton import dialect

from datakit.trainer.models import grug
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import make_mesh
from datakit.trainer.optimizers import adamh
from datakit.trainer.step import Trainer
from tests.support.trainer.programs import LARGEST, constants
from tests.support.trainer.small_models import SMALL

LENGTH = 448  # no other axis of the model has this size
CALL = re.compile(r"stablehlo\.custom_call @([\w.$]+)")
KERNEL = re.compile(r'ir = "((?:[^"\\]|\\.)*)"')
SQUARE = re.compile(rf"tensor<(?:\d+x)*{LENGTH}x(?:\d+x)?{LENGTH}x[^>]*>")
PRODUCT = re.compile(r"tt\.dot .* : tensor<[\dx]*x(\w+)> \* tensor<[\dx]*x(\w+)> -> tensor<[\dx]*x(\w+)>")


@functools.cache
def program(backend: Any = "pallas", compute: Any = "bfloat16") -> str:
    """A training step of Grug, lowered for CUDA."""
    config = dataclasses.replace(
        SMALL, head_width=16, window=LENGTH, compute=compute, remat="recompute_all", moe_backend="ragged",
        attention_backend=backend,
    )  # fmt: skip
    trainer = Trainer(grug, config, adamh.Config().constants(), make_mesh(devices=jax.devices()[:1]))
    tokens: Any = jax.ShapeDtypeStruct((2, LENGTH), jnp.int32)
    batch = Tokens(tokens, tokens, jax.ShapeDtypeStruct((2, LENGTH), bool))  # type: ignore[arg-type]
    with jax.set_mesh(trainer.mesh):
        return (
            trainer.advance.trace(trainer.like(), batch, trainer.rates_like(), watch=False)
            .lower(lowering_platforms=("cuda",))
            .as_text()
        )


def kernels(text: str) -> dict[str, str]:
    """The Triton code of each kernel, by name."""
    found = {}
    for encoded in KERNEL.findall(text):
        code = re.sub(r"\\([0-9A-F]{2}|.)", lambda match: unescaped(match[1]), encoded)
        context = ir.Context()
        dialect.register_dialect(context)
        module = str(ir.Module.parse(code.encode("latin-1"), context))
        found[re.search(r"module @(\w+)", module)[1]] = module  # type: ignore[index]
    return found


def unescaped(escape: str) -> str:
    """The character of an MLIR escape: two hexadecimal digits, or a character that stands for itself."""
    return chr(int(escape, 16)) if len(escape) == 2 else {"n": "\n", "t": "\t"}.get(escape, escape)


def test_attention_runs_in_three_kernels() -> None:
    assert set(kernels(program())) == {"attention", "attention_to_query", "attention_to_keys"}
    assert set(CALL.findall(program())) == {"__gpu$xla.gpu.triton"}


def test_no_array_holds_all_pairs_of_positions() -> None:
    assert SQUARE.search(program("dense"))  # the pattern finds them where they are
    assert not SQUARE.search(program())


def test_constants_are_small() -> None:
    assert max(constants(program())) <= LARGEST


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_kernels_multiply_in_the_model_s_type_and_add_in_fp32(compute: Any) -> None:
    narrow = {"bfloat16": "bf16", "float32": "f32"}[compute]
    for name, code in kernels(program(compute=compute)).items():
        products = PRODUCT.findall(code)
        assert len(products) == {"attention": 2, "attention_to_query": 3, "attention_to_keys": 4}[name]
        assert set(products) == {(narrow, narrow, "f32")}, name
        assert compute == "bfloat16" or "tf32" not in code
