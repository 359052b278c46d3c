"""AdamW: Adam with decoupled weight decay for all weights (Loshchilov and Hutter, arXiv:1711.05101).

    p <- p - lr * (u + weight_decay * p)        u: Adam's direction

The defaults are the recipe of OLMoE-1B-7B (arXiv:2409.02060 and the configurations in github.com/allenai/OLMoE): peak
rate 4e-4, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1 of *all* weights including embeddings and norm gains, gradients
clipped to a norm of 1.0 all together, and a cosine schedule that ends at a tenth of the peak. The warm-up takes 6.5 %
of the steps, as in those configurations (8.4 of 130 G tokens). The recipe's losses are settings of the model:
`balance_loss` 0.01 and `router_z_loss` 0.001. The built-in run `olmoe` has them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from datakit.toml_config import check_idle
from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.models.weights import Weight
from datakit.trainer.optimizers.adam import AdamSettings, is_matrix
from datakit.trainer.optimizers.protocol import Moments, WeightStep
from datakit.trainer.optimizers.settings import check_not_negative


@dataclass(frozen=True)
class Config(AdamSettings):
    """Settings of AdamW. All weights use `learning_rate`."""

    learning_rate: float = 4e-4
    schedule: Literal["linear", "cosine", "constant", "trapezoid"] = "cosine"
    warmup: float = 0.065
    final: float = 0.1
    weight_decay: float = 0.1
    # "matrices": weights of attention, MLPs, experts, routers and head; "all": also embeddings, norm gains and gates
    decaying: Literal["all", "matrices"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, ("weight_decay",))
        if not self.weight_decay:
            check_idle("optimizer", self, [{"decaying": "with weight_decay = 0"}])

    def update(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        direction, moments = self.direction(step)
        if self._decays(step.weight):
            direction += self.weight_decay * step.value
        return step.value - step.rate * direction, moments

    def _decays(self, weight: Weight) -> bool:
        return self.weight_decay > 0 and (self.decaying == "all" or is_matrix(weight) or weight.group == "router")
