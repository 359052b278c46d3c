"""Rounds arrays to int8 values and back, to measure how much accuracy int8 products would lose. The products themselves
stay in the case's number type, so a row with quantization measures the rounding's cost, not the speed of int8 units.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def fake_int8(x: Any) -> Any:
    """Round each row (the last axis) to 255 equal steps around zero. Gradients pass unchanged."""
    scale = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=-1, keepdims=True) / 127
    steps = jnp.round(x.astype(jnp.float32) / jnp.maximum(scale, 1e-30))
    return (steps * scale).astype(x.dtype)


fake_int8.defvjp(lambda x: (fake_int8(x), None), lambda _, cotangent: (cotangent,))
