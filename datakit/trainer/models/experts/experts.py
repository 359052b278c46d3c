"""Sends every token through its K chosen experts, and decides which backend computes the experts, and which exchange
brings tokens and experts together.

    experts(x, expert, share, w_in, w_out, gate, backend, exchange, limit) -> y
    y[t] = sum over k of share[t, k] * gate(x[t] @ w_in[expert[t, k]]) @ w_out[expert[t, k]]

docs/models.md describes the backends. `auto` means `tiles` on a CPU, `tokamax` on a GPU (`tiles`, with a warning, if
tokamax is not installed), and `ragged` otherwise. On a CPU, XLA expands `ragged_dot` to the dense computation, which
takes E / K times the work: with 8 experts, `ragged` is 5 times slower than `tiles`, and with more experts, it is slower
still. On a GPU, XLA (JAX 0.11.2) also expands `ragged_dot`; in a large layer, the resulting buffers exceed 80 GB.

On a mesh, each device computes the experts for its own tokens, after gathering the weights of all experts (FSDP). If
the mesh has an expert axis, a device gathers only the weights of its own experts, and an exchange (`ring.py`,
`all_to_all.py`) brings the tokens to them. No token is dropped, except by a model with a capacity (`capacity.py`).
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.models.experts.all_to_all import all_to_all, ragged_all_to_all
from datakit.trainer.models.experts.capacity import AXIS, Limit
from datakit.trainer.models.experts.exchange import SAVED_NAME
from datakit.trainer.models.experts.expert_sort import combine, sort_by_expert, spread
from datakit.trainer.models.experts.expert_tiles import tiled_experts
from datakit.trainer.models.experts.grouped_product import tokamax_matmul
from datakit.trainer.models.experts.ring import ring
from datakit.trainer.models.layers import GATES
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import TOKENS, current_mesh

Backend = Literal["auto", "tiles", "ragged", "tokamax", "dense"]
Exchange = Literal["auto", "ring", "all_to_all", "ragged_all_to_all"]
GroupedMatmul = Callable[[Any, Any, Any], Any]
NO_TOKAMAX = (
    "tokamax is not installed, so the experts are computed by the backend tiles, which was written for CPUs; "
    'for a GPU, `pip install tokamax`. To silence this warning, set moe_backend = "tiles" in the run file'
)
RAGGED_PLATFORMS = ("gpu", "tpu")  # those whose compiler has a ragged all-to-all


def experts(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    gate: str = "swiglu",  # a name in `layers.GATES`
    backend: Backend = "auto",
    exchange: Exchange = "auto",
    limit: Limit | None = None,
) -> Float[Array, "T D"]:
    """Return `y`, as defined in the module's docstring. `x`, `w_in` and `w_out` must have the same dtype; sums are
    computed in fp32. With `limit`, the assignments must have passed `limit.clip`. Raises UsageError if the platform
    does not have the exchange, or if the limit's blocks or groups do not fit on the devices.
    """
    mesh = current_mesh()
    compute = partial(_BACKENDS[resolve(backend)], gate=GATES[gate])
    parts = mesh.shape[AXIS] if mesh.size > 1 else 1
    if parts > 1 or limit is not None:
        tokens = x.shape[0] // max(mesh.size, 1)
        swap = _EXCHANGES[resolve_exchange(exchange, parts, tokens, limit)]
        compute = partial(swap, compute=compute, parts=parts, limit=limit)
    if mesh.size > 1:
        # check_vma is off, because it supports no custom gradients with integer inputs. In its place, tests compare the
        # results on one device and on several.
        tokens_and_weights = (P(TOKENS), P(TOKENS), P(TOKENS), P(AXIS), P(AXIS))
        compute = jax.shard_map(compute, in_specs=tokens_and_weights, out_specs=P(TOKENS), check_vma=False)
    return compute(x, expert, share, w_in, w_out)


def resolve_exchange(exchange: Exchange, parts: int, tokens: int, limit: Limit | None) -> str:
    """Return the given exchange, or the one that `auto` means: that in which a device with `tokens` tokens receives
    fewer rows. Raises UsageError if the platform does not have it.
    """
    platform = jax.default_backend()
    if exchange == "ragged_all_to_all" and platform not in RAGGED_PLATFORMS:
        raise UsageError(
            f"model.exchange = 'ragged_all_to_all' needs a ragged all-to-all, which XLA does not have on "
            f"{platform}; use 'all_to_all' or 'ring'"
        )
    if exchange != "auto":
        return exchange
    fewer = parts > 1 and limit is not None and limit.bound(tokens, parts) < tokens
    return "all_to_all" if fewer else "ring"


def resolve(backend: Backend) -> str:
    """Return the given backend, or the one that `auto` means on this machine."""
    return automatic(jax.default_backend()) if backend == "auto" else backend


def automatic(platform: str) -> str:
    """Return the backend that `auto` means on a JAX platform. Warns on a GPU if tokamax is not installed."""
    if platform == "gpu":
        if importlib.util.find_spec("tokamax"):
            return "tokamax"
        warnings.warn(NO_TOKAMAX, stacklevel=2)
    return "tiles" if platform in {"cpu", "gpu"} else "ragged"


def _dense(x: Any, expert: Any, share: Any, w_in: Any, w_out: Any, gate: Callable[[Any], Any]) -> Any:
    weight = jnp.sum((expert[..., None] == jnp.arange(w_in.shape[0])) * share[..., None], axis=1)
    middle = gate(jnp.einsum("td,edf->tef", x, w_in))
    return jnp.einsum("tei,eid,te->td", middle, w_out, weight.astype(x.dtype)).astype(x.dtype)


def _sorted_experts(
    x: Any, expert: Any, share: Any, w_in: Any, w_out: Any, gate: Callable[[Any], Any], matmul: GroupedMatmul
) -> Any:
    order = sort_by_expert(expert, w_in.shape[0])
    rows = checkpoint_name(spread(x, order), SAVED_NAME)
    middle = checkpoint_name(matmul(rows, w_in, order.counts), SAVED_NAME)
    # Kernels do not write rows that belong to no expert, and a NaN there would spoil the gradients of the weights.
    middle = jnp.where(jnp.arange(len(rows))[:, None] < jnp.sum(order.counts), middle, 0)
    return combine(matmul(gate(middle), w_out, order.counts), share, order)


_BACKENDS: dict[str, Callable[..., Any]] = {
    "dense": _dense,
    "ragged": partial(_sorted_experts, matmul=jax.lax.ragged_dot),
    "tiles": partial(tiled_experts, saved_name=SAVED_NAME),
    "tokamax": partial(_sorted_experts, matmul=tokamax_matmul),
}
_EXCHANGES: dict[str, Callable[..., Any]] = {
    "ring": ring,
    "all_to_all": all_to_all,
    "ragged_all_to_all": ragged_all_to_all,
}
