"""On a mesh, each device routes its own tokens, and few sums over the devices follow each other."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.trainer.models import grug, olmoe, router, weights
from datakit.trainer.models.protocol import Tokens
from tests.support.small_models import FAMILY, SMALL

DEVICES, ROWS, LENGTH, EXPERTS = 8, 16, 29, 11  # sizes that no other axis has
SUMS = re.compile(r"= \S+ all-reduce(?:-start)?\(")


def compiled(module: Any, config: Any) -> str:
    """The optimized program of the loss, the gradients and the next state, for a mesh of eight devices."""
    mesh = weights.make_mesh()
    split = weights.shardings(module.weights(config), mesh)

    def step(params: Any, state: Any, batch: Tokens) -> Any:
        def loss(params: Any) -> Any:
            output = module.apply(params, state, batch, config)
            return jnp.sum(output.losses * output.weights) + output.auxiliary, output

        return jax.grad(loss, has_aux=True)(params)

    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(lambda key: weights.initialize(module.weights(config), key), jax.random.key(0))
        params = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, split)
        rows: Any = NamedSharding(mesh, P(weights.BATCH))
        kinds = (jnp.int32, jnp.int32, jnp.bool_)
        arrays: Any = (jax.ShapeDtypeStruct((ROWS, LENGTH), kind, sharding=rows) for kind in kinds)
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
