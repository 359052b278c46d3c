"""Muon: matrices move in the direction of their orthogonalized momentum; all other weights use Adam.

    m <- momentum m + (1 - momentum) g
    o = orthogonalize(momentum m + (1 - momentum) g)            without `nesterov`: orthogonalize(m)
    p <- p - lr * (scale o + weight_decay p)

(Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, https://kellerjordan.github.io/
posts/muon/; `newton_schulz.py` has the iteration.) Each layer's and expert's matrix is orthogonalized separately; gate
and up side by side count as one matrix. Embeddings, routers, vectors and the weight named `head` use Adam, as there.
Matrices need one fp32 array instead of Adam's two.

`scale` makes steps of matrices of different shapes comparable, for a matrix of [inputs, outputs]:

    "rms"        0.2 sqrt(max(inputs, outputs)): an update's root mean square is about 0.2, as that of AdamW's updates,
                 so learning rates and weight decay of AdamW carry over (Moonlight, arXiv:2502.16982, section 2.2)
    "spectral"   sqrt(max(1, outputs / inputs)): Keller Jordan's; learning rates are about 0.02
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from datakit.errors import UsageError
from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.models.weights import Group, Weight
from datakit.trainer.optimizers.adam import ADAM_MOMENTS, MatrixSettings, is_matrix
from datakit.trainer.optimizers.newton_schulz import orthogonalized
from datakit.trainer.optimizers.protocol import Moments, WeightStep
from datakit.trainer.optimizers.settings import check_not_negative, check_shares

HEAD = "head"  # path of the output matrix in a table of weights
LARGEST_ITERATIONS = 20


@dataclass(frozen=True)
class MuonSettings(MatrixSettings):
    """The settings of Muon and MuonH."""

    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5  # Newton-Schulz iterations
    orthogonalize_in: Literal["float32", "bfloat16"] = "float32"  # type of the inputs of the iteration's products

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, ("momentum",))
        if not 1 <= self.iterations <= LARGEST_ITERATIONS:
            raise UsageError(
                f"optimizer.iterations is {self.iterations}; use 1 to {LARGEST_ITERATIONS} Newton-Schulz iterations"
            )

    def muon_direction(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        """Return the orthogonalized momentum of a stack of matrices, and the new momentum. Raises UsageError if the
        table of weights does not describe a stack of matrices.
        """
        shape, stack = step.weight.shape, step.weight.stack
        if len(shape) != stack + 2:
            raise UsageError(
                f"weight {step.path} {shape}: Muon needs matrices, but after {stack} stacked axes, "
                f"{len(shape) - stack} are left; correct `stack` or `group` in the model's table of weights"
            )
        mu = self.momentum * step.moments["mu"] + (1 - self.momentum) * step.gradient
        ahead = self.momentum * mu + (1 - self.momentum) * step.gradient if self.nesterov else mu
        dtype = jnp.dtype(self.orthogonalize_in)
        return orthogonalized(ahead, stack, self.iterations, dtype), {"mu": mu}


@dataclass(frozen=True)
class Config(MuonSettings):
    """Settings of Muon. With the default scale, learning rates are those of AdamW."""

    learning_rate: float = 4e-4
    adam_learning_rate: float = 4e-4
    scale: Literal["rms", "spectral"] = "rms"
    weight_decay: float = 0.1  # of the matrices that Muon updates

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, ("weight_decay",))

    def group(self, path: str, weight: Weight) -> Group:
        return "adam" if path == HEAD else weight.group

    def moments(self, path: str, weight: Weight) -> tuple[str, ...]:
        return ("mu",) if is_matrix(weight) else ADAM_MOMENTS

    def update(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        if not is_matrix(step.weight):
            direction, moments = self.direction(step)
            return step.value - step.rate * direction, moments
        direction, moments = self.muon_direction(step)
        move = self._scale(step.weight) * direction + self.weight_decay * step.value
        return step.value - step.rate * move, moments

    def _scale(self, weight: Weight) -> float:
        inputs, outputs = weight.shape[-2:]
        if self.scale == "rms":
            return 0.2 * math.sqrt(max(inputs, outputs))
        return math.sqrt(max(1.0, outputs / inputs))
