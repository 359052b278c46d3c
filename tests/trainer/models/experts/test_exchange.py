"""Expert parallelism computes what one device does, whatever the size of the expert axis and the exchange."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models import router, weights
from datakit.trainer.models.experts import experts as expert_layer
from datakit.trainer.models.experts.capacity import Limit

HIDDEN, WIDTH, EXPERTS, CHOICES, TOKENS = 24, 16, 16, 3, 192
SIZES = (1, 2, 4, 8)
EXCHANGES = ("ring", "all_to_all")
SPLIT = (P(weights.BATCH), P(weights.BATCH), P(weights.BATCH), P("expert"), P("expert"))


def inputs(skew: float) -> tuple[Any, ...]:
    """Tokens, experts, shares and the experts' matrices; `skew` crowds the first experts."""
    keys = jax.random.split(jax.random.key(3), 4)
    logits = jax.random.normal(keys[0], (TOKENS, EXPERTS)) - skew * jnp.arange(EXPERTS)
    routing = router.sigmoid_route(logits, jnp.zeros(EXPERTS), CHOICES)
    return (
        jax.random.normal(keys[1], (TOKENS, HIDDEN)),
        *routing,
        jax.random.normal(keys[2], (EXPERTS, HIDDEN, 2 * WIDTH)) * HIDDEN**-0.5,
        jax.random.normal(keys[3], (EXPERTS, WIDTH, HIDDEN)) * WIDTH**-0.5,
    )


def clipped(tokens: Any, _: Any, axes: Any, limit: Limit) -> Any:
    """The routing within the limit, and the rate of dropped assignments."""
    routing, valid = tokens
    return limit.clip(routing, valid, EXPERTS, axes)


def value_and_gradients(arguments: Any, backend: Any, exchange: Any = "auto", limit: Limit | None = None) -> Any:
    """Outputs, the gradients of x, share and both matrices, and the rate of dropped assignments."""

    def loss(x: Any, share: Any, w_in: Any, w_out: Any) -> Any:
        routing, overflow = router.Routing(arguments[1], share), jnp.float32(0)
        if limit is not None:
            clip = functools.partial(clipped, limit=limit)
            routing, overflow = router.on_own_tokens(clip, (routing, jnp.ones(TOKENS, bool)), ())
        how = {"backend": backend, "exchange": exchange, "limit": limit}
        y = expert_layer.experts(x, routing.expert, routing.share, w_in, w_out, **how)
        return jnp.sum(jnp.sin(y)), (y, overflow)

    x, _, share, w_in, w_out = arguments
    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))
    (_, (y, overflow)), gradients = run(x, share, w_in, w_out)
    return (y, *gradients), float(overflow)


def split_value(size: int, skew: float, *how: Any) -> Any:
    """The same on eight devices, of which `size` share the experts."""
    mesh = weights.make_mesh(experts=size)
    with jax.set_mesh(mesh):
        arguments = [jax.device_put(x, NamedSharding(mesh, at)) for x, at in zip(inputs(skew), SPLIT, strict=True)]
        return value_and_gradients(arguments, *how)


@functools.cache
def oracle(skew: float, limit: Limit | None = None) -> Any:
    """Outputs, gradients and rate of the dense computation on one device; for a limit, with the shares of the dropped
    assignments set to zero.
    """
    return value_and_gradients(inputs(skew), "dense", "auto", limit)


def assert_same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("size", SIZES)
def test_any_number_of_expert_parallel_devices_equals_the_oracle(size: int, exchange: Any) -> None:
    for skew, backend in ((0.0, "ragged"), (3.0, "tiles")):
        found, overflow = split_value(size, skew, backend, exchange)
        assert_same(found, oracle(skew)[0])
        assert overflow == 0


LIMIT = Limit(tokens=TOKENS // 8, groups=8, most=6)  # the even load would be 9


@pytest.mark.parametrize(("size", "exchange"), [(1, "auto"), (4, "ring"), (8, "all_to_all")])
def test_exchanges_drop_the_same_assignments(size: int, exchange: Any) -> None:
    found, overflow = split_value(size, 1.0, "tiles", exchange, LIMIT)
    assert_same(found, oracle(1.0, LIMIT)[0])
    assert overflow == pytest.approx(oracle(1.0, LIMIT)[1])
    assert overflow > 0.3
    dropped = np.abs(found[2]).max(axis=1) == 0  # tokens whose shares all have no gradient
    np.testing.assert_array_equal(np.abs(np.asarray(found[0])).max(axis=1) == 0, dropped)
    assert dropped.any()


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("size", [1, 4, 8])
def test_a_capacity_that_drops_nothing_changes_nothing(size: int, exchange: Any) -> None:
    most = TOKENS // 8 * CHOICES
    found, overflow = split_value(size, 1.0, "tiles", exchange, dataclasses.replace(LIMIT, most=most))
    assert_same(found, oracle(1.0)[0])
    assert overflow == 0


def test_auto_receives_the_fewest_rows() -> None:
    assert expert_layer.resolve_exchange("auto", 4, TOKENS // 8, None) == "ring"
    assert expert_layer.resolve_exchange("auto", 4, TOKENS // 8, LIMIT) == "all_to_all"
    assert expert_layer.resolve_exchange("auto", 2, TOKENS // 8, LIMIT) == "ring"


@pytest.mark.parametrize(
    ("size", "exchange", "limit"), [(4, "all_to_all", None), (2, "ring", None), (8, "all_to_all", LIMIT)]
)
def test_kernels_receive_the_true_numbers_of_rows(
    size: int, exchange: Any, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that belong to no expert are not counted, so kernels need not write them, forward or backward."""
    counted: list[Any] = []

    def unwritten(values: Any, counts: Any) -> Any:
        written = jnp.arange(values.shape[0])[:, None] < jnp.sum(counts)
        return jnp.where(written, values, jnp.nan)

    @jax.custom_vjp
    def rows_with_unwritten_gradient(rows: Any, counts: Any) -> Any:
        return rows

    rows_with_unwritten_gradient.defvjp(
        lambda rows, counts: (rows, counts), lambda counts, gradient: (unwritten(gradient, counts), None)
    )

    def matmul(rows: Any, weights: Any, counts: Any) -> Any:
        jax.debug.callback(counted.append, counts)
        product = jax.lax.ragged_dot(rows_with_unwritten_gradient(rows, counts), weights, counts)
        return unwritten(product, counts)

    kernel = functools.partial(expert_layer._sorted_experts, matmul=matmul)
    monkeypatch.setitem(expert_layer._BACKENDS, "ragged", kernel)
    found, overflow = split_value(size, 1.0, "ragged", exchange, limit)
    assert_same(found, oracle(1.0, limit)[0])
    jax.effects_barrier()
    assert len(counted) == 2 * 8  # two products on each of eight devices
    assert np.sum(counted) == 2 * round((1 - overflow) * TOKENS * CHOICES)


def by_gathering(operand: Any, output: Any, *ranges: Any, axis_name: str) -> Any:
    """Compute `jax.lax.ragged_all_to_all` by gathering all rows, since XLA does not have it on CPUs."""
    input_offsets, send_sizes, output_offsets, recv_sizes = ranges
    me = jax.lax.axis_index(axis_name)
    everything = jax.lax.all_gather((operand, input_offsets, send_sizes, output_offsets), axis_name)
    for rows, start, sent, target in zip(*everything, strict=True):
        place = jnp.arange(output.shape[0]) - target[me]
        taken = rows[jnp.clip(start[me] + place, 0, rows.shape[0] - 1)]
        here = ((place >= 0) & (place < sent[me])).reshape(-1, *[1] * (output.ndim - 1))
        output = jnp.where(here, taken, output)
    swapped = jax.lax.all_to_all(send_sizes, axis_name, 0, 0, tiled=True)
    return jnp.where((swapped == recv_sizes).all(), output, jnp.zeros_like(output) - 1)


@pytest.mark.parametrize(("size", "limit"), [(4, None), (8, LIMIT)])
def test_ragged_exchange_equals_the_oracle(size: int, limit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", by_gathering)
    monkeypatch.setattr(expert_layer, "RAGGED_PLATFORMS", ("cpu",))
    found, overflow = split_value(size, 1.0, "ragged", "ragged_all_to_all", limit)
    assert_same(found, oracle(1.0, limit)[0])
    assert overflow == pytest.approx(oracle(1.0, limit)[1])


def test_ragged_exchange_is_refused_where_the_compiler_has_none() -> None:
    with pytest.raises(UsageError, match=r"ragged_all_to_all.*XLA does not have on cpu; use 'all_to_all' or 'ring'"):
        split_value(4, 1.0, "ragged", "ragged_all_to_all")


def test_ragged_exchange_lowers_for_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_layer, "RAGGED_PLATFORMS", ("cpu",))
    with jax.set_mesh(weights.make_mesh(experts=4)):

        def loss(x: Any, *rest: Any) -> Any:
            return jnp.sum(expert_layer.experts(x, *rest, backend="ragged", exchange="ragged_all_to_all"))

        for platform in ("cuda", "tpu"):
            text = jax.jit(jax.grad(loss)).trace(*inputs(0.0)).lower(lowering_platforms=(platform,)).as_text()
            assert text.count("@ragged_all_to_all") == 4  # rows and ids, the gradients of results and of rows


def test_bfloat16_rounds_a_token_s_sum_once() -> None:
    """The ring adds the partial sums of the devices in fp32, so it rounds as one device does."""
    narrow = [value.astype(jnp.bfloat16) if at in (0, 3, 4) else value for at, value in enumerate(inputs(0.0))]
    alone = expert_layer.experts(*narrow, "swiglu", "ragged")  # type: ignore[arg-type]
    mesh = weights.make_mesh(experts=8)
    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, NamedSharding(mesh, at)) for x, at in zip(narrow, SPLIT, strict=True)]
        for exchange in EXCHANGES:
            found = jax.jit(functools.partial(expert_layer.experts, backend="ragged", exchange=exchange))(*placed)
            assert found.dtype == jnp.bfloat16
            np.testing.assert_allclose(found.astype(jnp.float32), alone.astype(jnp.float32), atol=0, rtol=2**-8)
