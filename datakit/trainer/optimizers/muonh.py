"""MuonH: Muon's direction with AdamH's step. A matrix moves against its orthogonalized momentum by a step relative to
its norm, and then its norm is restored (see `muon.py` and `adamh.py`):

    p' = p - lr * |p| * o / |o|,  p <- p' * |p| / |p'|        o: the orthogonalized momentum

So there is no weight decay and no scale. As in the published MuonH (Levanter, `levanter/optim/muonh.py`), the weight
named `head` uses AdamH, and embeddings, routers, gates and vectors use Adam.
"""

from __future__ import annotations

from dataclasses import dataclass

from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.models.weights import Weight
from datakit.trainer.optimizers.adam import ADAM_MOMENTS, is_matrix
from datakit.trainer.optimizers.adamh import rotated
from datakit.trainer.optimizers.muon import HEAD, MuonSettings
from datakit.trainer.optimizers.protocol import Moments, WeightStep


@dataclass(frozen=True)
class Config(MuonSettings):
    """Settings of MuonH."""

    learning_rate: float = 0.01  # relative step of the matrices
    adam_learning_rate: float = 0.0024

    def keeps_norm(self, group: str) -> bool:
        return group in ("adamh", "adamh_expert")

    def moments(self, path: str, weight: Weight) -> tuple[str, ...]:
        return ("mu",) if is_matrix(weight) and path != HEAD else ADAM_MOMENTS

    def update(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        orthogonalizes = is_matrix(step.weight) and step.path != HEAD
        direction, moments = self.muon_direction(step) if orthogonalizes else self.direction(step)
        if is_matrix(step.weight):
            return rotated(step.value, direction, step.rate, step.weight.stack), moments
        return step.value - step.rate * direction, moments
