"""Computes Adam's direction, and defines the settings of the optimizers that use it for all or for some weights.

    m = beta1 m + (1 - beta1) g            v = beta2 v + (1 - beta2) g**2
    direction = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + epsilon)

(Kingma and Ba, arXiv:1412.6980). It costs two fp32 arrays per weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.models.weights import Group, Weight
from datakit.trainer.optimizers.protocol import Moments, Optimizer, WeightStep
from datakit.trainer.optimizers.settings import check_not_negative, check_shares

ADAM_MOMENTS = ("mu", "nu")
# The weights of a family are clipped together. The reasons are in docs/models.md.
FAMILIES: dict[Group, str] = {"adam": "adam", "router": "adam", "adamh": "adamh", "adamh_expert": "adamh_expert"}


@dataclass(frozen=True)
class AdamSettings(Optimizer):
    """The settings of Adam's direction."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, ("beta1", "beta2"))
        check_not_negative(self, ("epsilon",))

    def moments(self, path: str, weight: Weight) -> tuple[str, ...]:
        return ADAM_MOMENTS

    def direction(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        """Return Adam's direction for a weight, and its new moments. The step is `-rate` times the direction."""
        mu = self.beta1 * step.moments["mu"] + (1 - self.beta1) * step.gradient
        nu = self.beta2 * step.moments["nu"] + (1 - self.beta2) * step.gradient**2
        corrected = mu / (1 - self.beta1**step.count)
        direction = corrected / (jnp.sqrt(nu / (1 - self.beta2**step.count)) + self.epsilon)
        return direction, {"mu": mu, "nu": nu}


@dataclass(frozen=True)
class MatrixSettings(AdamSettings):
    """The settings of optimizers that update matrices by a rule of their own, and all other weights by Adam.

    `learning_rate` is the rate of the matrices (the groups "adamh" and "adamh_expert").
    """

    adam_learning_rate: float = 0.001  # rate of embeddings, gains and gates
    expert_learning_rate: float | None = None  # of the experts' matrices; None: use learning_rate
    router_learning_rate: float | None = None  # None: use adam_learning_rate

    def peak(self, group: Group) -> float:
        adam = self.adam_learning_rate
        router = adam if self.router_learning_rate is None else self.router_learning_rate
        expert = self.learning_rate if self.expert_learning_rate is None else self.expert_learning_rate
        return {"adam": adam, "router": router, "adamh": self.learning_rate, "adamh_expert": expert}[group]

    def family(self, group: Group) -> str:
        return FAMILIES[group]


def is_matrix(weight: Weight) -> bool:
    """Return True for the matrices of attention, MLPs, experts and the head; False for embeddings, routers, gains and
    gates.
    """
    return weight.group in ("adamh", "adamh_expert")
