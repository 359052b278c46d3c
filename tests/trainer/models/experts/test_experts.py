"""Experts by every route give the oracle's sums and gradients."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.trainer.gpu_check import compiled_text, dense_arrays, dense_buffers
from benchmarks.trainer.moe_layer import moe_step, warm_up
from datakit.errors import UsageError
from datakit.trainer.models import router
from datakit.trainer.models.experts import expert_tiles
from datakit.trainer.models.experts import experts as expert_layer
from tests.support.trainer.expert_backends import SMALL, install_broken_tokamax

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


@functools.cache
def oracle(case: tuple[int, int, int, float]) -> Any:
    """Outputs and gradients of a case by the dense backend."""
    return value_and_gradients("dense", inputs(*case), "swiglu" if case[3] else "bilinear")


@pytest.mark.parametrize("backend", ["tiles", "ragged"])
@pytest.mark.parametrize(
    "case",
    [(200, 6, 3, 0.0), (200, 6, 3, 3.0), (1, 4, 1, 0.0), (7, 64, 4, 0.0), (300, 5, 1, 50.0)],
    ids=["even", "skewed", "one-token", "more-experts-than-tokens", "all-to-one"],
)
def test_backends_equal_the_oracle(backend: Any, case: tuple[int, int, int, float]) -> None:
    arguments, gate = inputs(*case), "swiglu" if case[3] else "bilinear"
    for ours, theirs in zip(value_and_gradients(backend, arguments, gate), oracle(case), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("constant", "value"), [("LARGEST_TILE", 16), ("MIDDLE_BYTES", 1)])
def test_other_tiles_and_turns_have_the_same_results(
    constant: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = (500, 2, 1, 0.0)
    usual = tile_plan(*case[:3])
    monkeypatch.setattr(expert_tiles, constant, value)
    assert tile_plan(*case[:3]) != usual
    for ours, theirs in zip(value_and_gradients("tiles", inputs(*case), "bilinear"), oracle(case), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-4)


def tile_plan(tokens: int, experts: int, choices: int) -> tuple[int, int]:
    """Rows per tile, and tiles per turn."""
    tile = expert_tiles.tile_rows(tokens * choices, experts)
    return tile, expert_tiles.at_once(tile, 4 * 2 * WIDTH)


def test_bfloat16_stays_near_fp32() -> None:
    x, expert, share, w_in, w_out = inputs(200)
    wide = expert_layer.experts(x, expert, share, w_in, w_out, backend="dense")
    for backend in ("tiles", "ragged"):
        cast = (value.astype(jnp.bfloat16) for value in (x, w_in, w_out))
        narrow_x, narrow_in, narrow_out = cast
        narrow = expert_layer.experts(narrow_x, expert, share, narrow_in, narrow_out, backend=backend)  # type: ignore[arg-type]
        assert narrow.dtype == jnp.bfloat16
        np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=0.1)


def test_tokamax_equals_the_oracle() -> None:
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


def test_auto_on_a_gpu_without_tokamax_warns_and_is_never_ragged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tokamax", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "tokamax").exists()])
    with pytest.warns(UserWarning, match="pip install tokamax"):
        assert expert_layer.automatic("gpu") == "tiles"


def test_auto_on_a_gpu_is_an_installed_tokamax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_broken_tokamax(tmp_path, monkeypatch)
    assert expert_layer.automatic("gpu") == "tokamax"


def test_auto_on_a_tpu_is_ragged() -> None:
    assert expert_layer.automatic("tpu") == "ragged"


def test_a_tokamax_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_broken_tokamax(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=r"tokamax.*No module named 'needed_by_tokamax'.*pip install tokamax"):
        value_and_gradients("tokamax", inputs(8), "swiglu")


def test_the_compiled_step_holds_no_dense_buffer() -> None:
    found = {
        backend: dense_buffers(compiled_text(SMALL, backend, jnp.float32), SMALL.experts, SMALL.tokens)
        for backend in ("tiles", "dense", "ragged")
    }
    assert found["tiles"] == []
    # The search works: it finds the buffers of the oracle, and those of ragged_dot, which XLA:CPU expands.
    assert found["dense"] and found["ragged"]


def gpu_program(backend: Any) -> str:
    """The program that a GPU's compiler receives for a small layer; `make gpu-check` checks what the compiler makes."""
    step, inputs = moe_step(SMALL, jnp.bfloat16, backend)
    return jax.jit(step).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()


def test_ragged_leaves_grouped_products_to_the_gpu_compiler() -> None:
    program = gpu_program("ragged")
    assert program.count('"chlo.ragged_dot"') == 6  # two forward, four backward
    assert program.count("stablehlo.dot_general") == 3  # the router's


def test_tiles_give_the_gpu_compiler_no_dense_array() -> None:
    found = {backend: dense_arrays(gpu_program(backend), SMALL.experts, SMALL.tokens) for backend in ("tiles", "dense")}
    assert found["tiles"] == []
    assert found["dense"]  # the search works


def test_a_step_that_exceeds_the_memory_is_reported() -> None:
    """The array of 512 TiB exceeds the memory of any machine."""
    huge = jax.jit(lambda value: jnp.zeros(1 << 47, jnp.float32) + value), (jnp.float32(1.0),)
    small = jax.jit(lambda value: value + 1), (jnp.float32(1.0),)
    fitting, failures = warm_up({"small": small, "huge": huge})
    assert list(fitting) == ["small"]
    assert "RESOURCE_EXHAUSTED" in failures["huge"]


def test_other_errors_of_a_step_are_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        warm_up({"broken": (fail, ())})
