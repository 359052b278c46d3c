"""Orthogonalizes matrices by a Newton-Schulz iteration: the singular values of a matrix become about 1, and its
singular vectors stay.

    X = M / |M|
    repeat:  A = X X^T;  X = a X + (b A + c A A) X        (a, b, c) = (3.4445, -4.7750, 2.0315)

The coefficients are those of Muon (Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
2024). They trade accuracy for speed: after 5 iterations, singular values are between about 0.7 and 1.2, which trains as
well as exact ones. For a matrix of m x n with m <= n, an iteration costs 4 m**2 n + 2 m**3 FLOPs.

On a mesh, each device handles whole matrices. The last stacked axis (the experts of a layer, or else the layers) is
spread over all devices; with two stacked axes, the first one is a loop, so only the temporary arrays of one layer are
in memory at once. A matrix that is not stacked is handled by every device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.models.weights import constrain, current_mesh

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPSILON = 1e-7  # added to the norm, so that a zero matrix stays zero


def orthogonalized(
    matrices: Float[Array, "*shape"], stack: int, iterations: int = 5, dtype: Any = jnp.float32
) -> Float[Array, "*shape"]:
    """Orthogonalize each matrix. The first `stack` axes index independent matrices, and the last two are its rows and
    columns. Products have inputs of type `dtype`, and sums are fp32. The result is fp32.
    """
    if stack > 1:
        step = partial(orthogonalized, stack=stack - 1, iterations=iterations, dtype=dtype)
        return jax.lax.map(step, matrices)
    tall = matrices.shape[-2] > matrices.shape[-1]
    spec = P(current_mesh().axis_names, None, None) if stack else P()
    x = constrain(jnp.swapaxes(matrices, -1, -2) if tall else matrices, spec)
    norm = jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True))
    x = (x / (norm + EPSILON)).astype(dtype)
    x = jax.lax.fori_loop(0, iterations, lambda _, x: _iterate(x), x).astype(jnp.float32)
    return jnp.swapaxes(x, -1, -2) if tall else x


def _iterate(x: Float[Array, "*stack rows columns"]) -> Float[Array, "*stack rows columns"]:
    a, b, c = COEFFICIENTS
    gram = _product(x, jnp.swapaxes(x, -1, -2))
    return a * x + _product(b * gram + c * _product(gram, gram), x)


def _product(left: Any, right: Any) -> Any:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32).astype(left.dtype)
