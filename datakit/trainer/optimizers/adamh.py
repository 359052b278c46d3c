"""AdamH moves a matrix in the direction of Adam's update, by a step *relative* to the norm of the matrix, and then
restores that norm:

    p' = p - lr * |p| * u / |u|,  p <- p' * |p| / |p'|        u: Adam's direction

|.| is the Frobenius norm of a single matrix (each layer and each expert has its own). So matrices keep their initial
norm, the learning rate is an angle, and weight decay would have no effect. Embeddings, routers, gates and vectors use
Adam. The formula and the defaults were published with the Grug recipe in April 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.optimizers.adam import MatrixSettings, is_matrix
from datakit.trainer.optimizers.protocol import Moments, WeightStep

TINY = 1e-30  # avoids a division by zero if a direction is zero


@dataclass(frozen=True)
class Config(MatrixSettings):
    """Settings of AdamH. `scaling.size` computes them from a compute budget and a width."""

    learning_rate: float = 0.01  # relative step of the matrices
    adam_learning_rate: float = 0.0024
    beta1: float = 0.9062
    beta2: float = 0.998
    epsilon: float = 1e-15

    def update(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        direction, moments = self.direction(step)
        if is_matrix(step.weight):
            return rotated(step.value, direction, step.rate, step.weight.stack), moments
        return step.value - step.rate * direction, moments

    def keeps_norm(self, group: str) -> bool:
        return group in ("adamh", "adamh_expert")


def rotated(
    value: Float[Array, "*shape"], direction: Float[Array, "*shape"], rate: Float[Array, ""] | float, stack: int
) -> Float[Array, "*shape"]:
    """Move each matrix against `direction` by `rate` times the matrix's norm, then rescale it to that norm. The first
    `stack` axes index independent matrices.
    """
    axes = tuple(range(stack, value.ndim))
    norm = _norm(value, axes)
    moved = value - rate * norm * direction / jnp.maximum(_norm(direction, axes), TINY)
    return moved * norm / jnp.maximum(_norm(moved, axes), TINY)


def _norm(x: Any, axes: tuple[int, ...]) -> Any:
    return jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True))
