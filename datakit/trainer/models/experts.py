"""Sends every token through its K chosen experts (no token is dropped), and decides which backend computes the experts.

    experts(x, expert, share, w_in, w_out, gate, backend) -> y
    y[t] = sum over k of share[t, k] * gate(x[t] @ w_in[expert[t, k]]) @ w_out[expert[t, k]]

docs/trainer.md describes the backends. `auto` means `tiles` on a CPU, `tokamax` on a GPU (`tiles`, with a warning, if
tokamax is not installed), and `ragged` otherwise. On a CPU, XLA expands `ragged_dot` to the dense computation, which
takes E / K times the work: with 8 experts, `ragged` is 5 times slower than `tiles`, and with more experts, it is slower
still. On a GPU, XLA (JAX 0.11.2) also expands `ragged_dot`; in a large layer, the resulting buffers exceed 80 GB. On a
mesh, each device computes the experts for its own tokens, after gathering the weights of all experts (FSDP).
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
from datakit.trainer.models.expert_sort import combine, sort_by_expert, spread
from datakit.trainer.models.expert_tiles import tiled_experts
from datakit.trainer.models.layers import GATES
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import BATCH, current_mesh

Backend = Literal["auto", "tiles", "ragged", "tokamax", "dense"]
GroupedMatmul = Callable[[Any, Any, Any], Any]
NO_TOKAMAX = (
    "tokamax is not installed, so the experts are computed by the backend tiles, which was written for CPUs; "
    'for a GPU, `pip install tokamax`. To silence this warning, set moe_backend = "tiles" in the run file'
)
SAVED_NAME = "moe_rows"  # name of the arrays that the remat policy "save_moe" keeps


def experts(
    x: Float[Array, "T D"],
    expert: Int[Array, "T K"],
    share: Float[Array, "T K"],
    w_in: Float[Array, "E D F"],
    w_out: Float[Array, "E I D"],
    gate: str = "swiglu",  # a name in `layers.GATES`
    backend: Backend = "auto",
) -> Float[Array, "T D"]:
    """Return `y`, as defined in the module's docstring. `x`, `w_in` and `w_out` must have the same dtype; sums are
    computed in fp32.
    """
    compute = partial(_BACKENDS[resolve(backend)], gate=GATES[gate])
    if current_mesh().size > 1:
        # check_vma is off, because it supports no custom gradients with integer inputs. In its place, tests compare the
        # results on one device and on several.
        compute = jax.shard_map(
            compute, in_specs=(P(BATCH), P(BATCH), P(BATCH), P(), P()), out_specs=P(BATCH), check_vma=False
        )
    return compute(x, expert, share, w_in, w_out)


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
    return combine(matmul(gate(middle), w_out, order.counts), share, order)


def _tokamax_matmul(rows: Any, weights: Any, count: Any) -> Any:
    try:
        import tokamax  # pyright: ignore[reportMissingImports] - optional; takes a second to import
    except ImportError as error:
        raise UsageError(
            f"the backend tokamax cannot be used, because importing it failed: {error}. Run `pip install tokamax`, "
            'which also installs its dependencies, or set moe_backend = "tiles" in the run file'
        ) from error
    return tokamax.ragged_dot(rows, weights, count)


_BACKENDS: dict[str, Callable[..., Any]] = {
    "dense": _dense,
    "ragged": partial(_sorted_experts, matmul=jax.lax.ragged_dot),
    "tiles": partial(tiled_experts, saved_name=SAVED_NAME),
    "tokamax": partial(_sorted_experts, matmul=_tokamax_matmul),
}
