"""Clips gradients per family of weights: if the norm of all gradients of a family is above `clip_norm`, each of them is
multiplied by `clip_norm` / norm. `Optimizer.family` decides which groups of weights form a family; docs/models.md
gives the reasons.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from datakit.trainer.models.shapes import Array
from datakit.trainer.models.weights import Tree, Weight
from datakit.trainer.norms import norms_by
from datakit.trainer.optimizers.protocol import Optimizer

TINY = 1e-30  # avoids a division by zero if all gradients are zero


def clipped(gradients: Tree, table: Tree, optimizer: Optimizer) -> tuple[Tree, dict[str, Array]]:
    """Return the gradients in fp32, clipped per family, and the norm of each family before clipping."""
    norms = norms_by(lambda weight: optimizer.family(weight.group), table, gradients)
    scales = {name: jnp.minimum(1.0, optimizer.clip_norm / jnp.maximum(norm, TINY)) for name, norm in norms.items()}

    def clip(weight: Weight, gradient: Array) -> Array:
        return gradient.astype(jnp.float32) * scales[optimizer.family(weight.group)]

    return jax.tree.map(clip, table, gradients), norms
