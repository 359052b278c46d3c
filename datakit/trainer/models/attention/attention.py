"""Computes causal softmax attention within documents and windows, and decides which backend computes it.

    attention(query, key, value, segments, window, backend) -> y
    y[s] = sum over t of softmax over t (query[s] . key[t] / sqrt(H)) * value[t]
    where t runs over first[s] ... s, and first[s] is the start of the document of s or of its window, if that is later

So the positions that s sees are one interval, and `first` describes all masks with one integer per position: no
backend except `dense`, which is for tests, holds a mask, scores of all pairs of positions, or computes scores that a
window masks. Windows may differ between the layers of one scan. docs/models.md describes the backends. On a mesh,
each device computes the attention of its own rows and, along the axis "tensor", of its own heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.attention.blocked import MASKED, blocked_attention
from datakit.trainer.models.attention.pallas_kernel import pallas_attention
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import BATCH, TENSOR, current_mesh

Backend = Literal["auto", "blocked", "pallas", "dense"]
NO_KERNEL = (
    "there is no attention kernel for the platform {platform}, so the backend blocked is used, which was written for "
    'CPUs; to silence this warning, set attention_backend = "blocked" in the run file'
)
PIECE = 64  # positions in a piece of `first_seen`


def attention(
    query: Float[Array, "B S N H"],
    key: Float[Array, "B S M H"],
    value: Float[Array, "B S M H"],
    segments: Int[Array, "B S"],
    window: Int[Array, ""] | int,
    backend: Backend = "auto",
) -> Float[Array, "B S N H"]:
    """Return `y`, as defined in the module's docstring; N / M query heads share each key head. A document is a run of
    equal numbers in `segments`. `window` is the number of positions that a position attends to, itself included.
    """
    compute = _BACKENDS[resolve(backend)]
    if current_mesh().size > 1:
        # check_vma is off for the reason given in `experts.experts`.
        heads = P(BATCH, None, TENSOR)
        compute = jax.shard_map(compute, in_specs=(heads, heads, heads, P(BATCH)), out_specs=heads, check_vma=False)
    return compute(query, key, value, first_seen(segments, window))


def first_seen(segments: Int[Array, "B S"], window: Int[Array, ""] | int) -> Int[Array, "B S"]:
    """Return the first position that each position sees: `first` in the module's docstring. It never decreases along a
    row. Running maxima are computed within pieces and then over pieces: `lax.cummax` would compile to a tree of many
    small programs.
    """
    batch, length = segments.shape
    place = jnp.arange(length, dtype=jnp.int32)
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    starts = jnp.pad(jnp.where(begins, place, 0), ((0, 0), (0, -length % PIECE))).reshape(batch, -1, PIECE)
    within = _running_maximum(starts)
    earlier = _running_maximum(jnp.pad(within[:, :-1, -1], ((0, 0), (1, 0))))
    latest = jnp.maximum(within, earlier[:, :, None]).reshape(batch, -1)[:, :length]
    return jnp.maximum(latest, place - (window - 1))


def _running_maximum(x: Int[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """Return the running maximum of numbers that are not negative, in n^2 comparisons."""
    place = jnp.arange(x.shape[-1])
    return jnp.max(jnp.where(place <= place[:, None], x[..., None, :], 0), axis=-1)


def resolve(backend: Backend) -> str:
    """Return the given backend, or the one that `auto` means on this machine."""
    return automatic(jax.default_backend()) if backend == "auto" else backend


def automatic(platform: str) -> str:
    """Return the backend that `auto` means on a JAX platform. Warns if the platform has no kernel."""
    if platform == "gpu":
        return "pallas"
    if platform != "cpu":
        warnings.warn(NO_KERNEL.format(platform=platform), stacklevel=2)
    return "blocked"


def _dense(query: Any, key: Any, value: Any, first: Any) -> Any:
    batch, length, _, width = query.shape
    grouped = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("bsmgh,btmh->bmgst", grouped, key, preferred_element_type=jnp.float32) * width**-0.5
    place = jnp.arange(length)
    seen = (place <= place[:, None]) & (place >= first[..., None])
    shares = jax.nn.softmax(jnp.where(seen[:, None, None], scores, MASKED), axis=-1).astype(query.dtype)
    return jnp.einsum("bmgst,btmh->bsmgh", shares, value).reshape(query.shape)


_BACKENDS: dict[str, Callable[..., Any]] = {"blocked": blocked_attention, "dense": _dense, "pallas": pallas_attention}
