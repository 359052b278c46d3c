"""Gathers and sums over one axis of a mesh, inside `jax.shard_map`, with gradients that are summed in fp32.

`gather` and `scatter_sum` are each other's gradients. A value is sent in its own type where it is only copied, and in
fp32 where it is summed, so that it is rounded once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from datakit.trainer.models.shapes import Array, Float


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(x: Float[Array, "*part"], axis_name: str, dimension: int) -> Float[Array, "*whole"]:
    """Join the parts of all devices on the axis along `dimension`."""
    return jax.lax.all_gather(x, axis_name, axis=dimension, tiled=True)


def _gather_backward(axis_name: str, dimension: int, _: None, cotangent: Any) -> tuple[Any]:
    wide = cotangent.astype(jnp.float32)
    own = jax.lax.psum_scatter(wide, axis_name, scatter_dimension=dimension, tiled=True)
    return (own.astype(cotangent.dtype),)


gather.defvjp(lambda x, axis_name, dimension: (gather(x, axis_name, dimension), None), _gather_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def scatter_sum(y: Float[Array, "*whole"], axis_name: str, dimension: int, dtype: Any) -> Float[Array, "*part"]:
    """Add the fp32 arrays of all devices on the axis; return this device's part along `dimension`, in `dtype`."""
    return jax.lax.psum_scatter(y, axis_name, scatter_dimension=dimension, tiled=True).astype(dtype)


def _scatter_sum_backward(axis_name: str, dimension: int, _: Any, __: None, cotangent: Any) -> tuple[Any]:
    return (jax.lax.all_gather(cotangent, axis_name, axis=dimension, tiled=True).astype(jnp.float32),)


scatter_sum.defvjp(lambda y, *how: (scatter_sum(y, *how), None), _scatter_sum_backward)
