"""On a mesh, each device routes its own tokens, and few sums over the devices follow each other."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.trainer.gpu_check import dense_buffers
from datakit.trainer.accumulation import training_loss
from datakit.trainer.models import grug, olmoe, router, weights
from datakit.trainer.models.protocol import Tokens
from tests.support.trainer.small_models import FAMILY, SMALL

DEVICES, ROWS, LENGTH, EXPERTS = 8, 16, 29, 11  # sizes that no other axis has
SUMS = re.compile(r"= \S+ all-reduce(?:-start)?\(")


def compiled(module: Any, config: Any, experts: int = 1, tensor: int = 1, length: int = LENGTH) -> str:
    """The optimized program of the loss, the gradients and the next state, for a mesh of eight devices."""
    mesh = weights.make_mesh(experts=experts, tensor=tensor)
    split = weights.shardings(module.weights(config), mesh)

    def step(params: Any, state: Any, batch: Tokens) -> Any:
        return jax.grad(partial(training_loss, module, config, state, batch), has_aux=True)(params)

    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(lambda key: weights.initialize(module.weights(config), key), jax.random.key(0))
        params = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, split)
        rows: Any = NamedSharding(mesh, P(weights.BATCH))
        kinds = (jnp.int32, jnp.int32, jnp.bool_)
        arrays: Any = (jax.ShapeDtypeStruct((ROWS, length), kind, sharding=rows) for kind in kinds)
        return jax.jit(step).lower(params, module.initial_state(config), Tokens(*arrays)).compile().as_text() or ""


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize(("module", "config"), [(grug, SMALL), (olmoe, FAMILY)], ids=["grug", "olmoe"])
def test_no_device_holds_the_scores_of_the_whole_batch(module: Any, config: Any, compute: Any) -> None:
    program = compiled(module, dataclasses.replace(config, experts=EXPERTS, compute=compute, remat="recompute_all"))
    tokens = ROWS * LENGTH
    assert f"[{tokens // DEVICES},{EXPERTS}]" in program
    found = set(re.findall(rf"\w+\[(?:\d+,)*{tokens},{EXPERTS}(?:,\d+)*\]", program))
    found |= set(re.findall(rf"\w+\[(?:\d+,)*{ROWS},{LENGTH},{EXPERTS}(?:,\d+)*\]", program))
    assert not found


@pytest.mark.parametrize(
    ("module", "config", "how"),
    [
        (grug, SMALL, {"exchange": "ring"}),
        (olmoe, FAMILY, {"exchange": "all_to_all", "capacity_factor": 1.5, "capacity_rows": 2, "capacity_groups": 4}),
    ],
    ids=["grug-ring", "olmoe-all-to-all"],
)
def test_expert_parallel_programs_hold_no_dense_buffer(module: Any, config: Any, how: Any) -> None:
    parts, experts, tokens = 4, 20, ROWS * LENGTH
    how |= {"experts": experts, "moe_backend": "tiles", "remat": "recompute_all"}
    program = compiled(module, dataclasses.replace(config, **how), parts)
    assert ("all-to-all" in program) == (how["exchange"] == "all_to_all")
    assert not re.findall(rf"\w+\[(?:\d+,)*{tokens},{experts}(?:,\d+)*\]", program)
    assert f"f32[{experts // parts},{config.hidden},{2 * config.expert_width}]" in program  # a device's own experts
    for count in (experts, experts // parts):
        assert not dense_buffers(program, count, tokens // DEVICES)


def test_devices_of_the_tensor_axis_hold_their_heads_and_ids_only() -> None:
    vocabulary, width = 106, 72  # ids; 12 heads of 6
    sizes: dict[str, Any] = {"vocabulary": vocabulary, "heads": 12, "kv_heads": 2, "head_width": 6, "loss_piece": 15}
    config = dataclasses.replace(FAMILY, attention_backend="dense", **sizes)  # whose scores are easy to find
    program = compiled(olmoe, config, tensor=2, length=30)
    assert f"f32[32,{vocabulary // 2}]" in program and f"[32,{width // 2}]" in program
    assert not re.findall(rf"f32\[(?:\d+,)*(?:{vocabulary}|{width})(?:,\d+)*\]", program)
    assert not re.findall(r"f32\[\d+,2,6,\d+,\d+\]", program)  # scores of all heads
    assert re.findall(r"f32\[\d+,1,6,\d+,\d+\]", program)


def test_a_quantile_takes_eight_sums_over_the_mesh() -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=(96, EXPERTS)), jnp.float32)
    mesh = weights.make_mesh()

    def search(values: Any) -> Any:
        def own(values: Any, k: Any, axes: Any) -> Any:
            return (), router.kth_largest(values, k, axes)

        return router.on_own_tokens(own, values, jnp.int32(17))[1]

    with jax.set_mesh(mesh):
        placed = jax.device_put(values, NamedSharding(mesh, P(weights.BATCH)))
        run = jax.jit(search).lower(placed).compile()
        np.testing.assert_array_equal(run(placed), np.sort(values, axis=0)[-17])
    program = run.as_text() or ""
    assert "all-gather" not in program
    assert len(SUMS.findall(program)) == 1
    assert '"known_trip_count":{"n":"8"}' in program
