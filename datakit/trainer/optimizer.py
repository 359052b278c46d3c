"""Implements the optimizers (AdamH combined with Adam, or AdamW): settings and their limits, learning-rate schedules,
gradient clipping per family, and the update of weights and moments.

AdamH moves a matrix in the direction of Adam's update, by a step *relative* to the norm of the matrix, and then
restores that norm:

    u = m / (sqrt(v) + eps)                   m, v: bias-corrected moments, as in Adam
    p' = p - lr * |p| * u / |u|,  p <- p' * |p| / |p'|

where |.| is the Frobenius norm of a single matrix (each layer and each expert has its own). So matrices keep their
initial norm, the learning rate is an angle, and weight decay would have no effect. Embeddings, routers, gates and
vectors use Adam. Gradients are clipped per family of groups ({adam, router}, {adamh} and {adamh_expert}), for the
reasons in docs/trainer.md. With AdamW, all weights form one family. Both moments are fp32 and sharded like the
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from datakit.errors import UsageError
from datakit.toml_config import check_idle
from datakit.trainer.models.shapes import Array, Float, Int
from datakit.trainer.models.weights import Group, Tree, Weight, leaves
from datakit.trainer.norms import norms_by

FAMILIES: dict[Group, str] = {"adam": "adam", "router": "adam", "adamh": "adamh", "adamh_expert": "adamh_expert"}
NO_DECAY = {"decay": "unless the schedule is trapezoid"}
IDLE: dict[str, dict[str, str]] = {  # value of `kind` or `schedule` -> settings without effect, and the reason
    "adamh": {"weight_decay": "with adamh, whose matrices keep their norm"},
    "adamw": dict.fromkeys(
        ("adam_learning_rate", "expert_learning_rate", "router_learning_rate"),
        "with adamw, where all weights use learning_rate",
    ),
    "linear": NO_DECAY,
    "cosine": NO_DECAY,
    "constant": NO_DECAY | {"final": "with a constant schedule"},
    "trapezoid": {},
}
WHOLE = "all"  # the single family of all weights under AdamW
Multiplier = Callable[[Any], Any]


@dataclass(frozen=True)
class Optimizer:
    """Settings of the optimizer. `scaling.size` computes them from a compute budget and a width."""

    kind: Literal["adamh", "adamw"] = "adamh"
    learning_rate: float = 0.01  # adamh: relative step of its matrices; adamw: rate of all weights
    adam_learning_rate: float = 0.0024
    expert_learning_rate: float | None = None  # None: use learning_rate
    router_learning_rate: float | None = None  # None: use adam_learning_rate
    beta1: float = 0.9062
    beta2: float = 0.998
    epsilon: float = 1e-15
    weight_decay: float = 0.0  # AdamW only
    clip_norm: float = 1.0
    schedule: Literal["linear", "cosine", "constant", "trapezoid"] = "linear"
    warmup: float = 0.1  # share of the training steps spent on warm-up
    decay: float = 0.2  # share of the training steps spent on the final decay; trapezoid only
    final: float = 0.0  # learning rate at the end, as a multiple of the peak rate
    ema: float | None = None  # decay factor of the averaged weights; None: keep no average

    def __post_init__(self) -> None:
        rates = ("learning_rate", "adam_learning_rate", "expert_learning_rate", "router_learning_rate")
        for name in (*rates, "epsilon", "weight_decay", "final"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"optimizer.{name} is {value}; use a finite number that is not negative")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"optimizer.{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"optimizer.warmup is {self.warmup}; it must be at least 0 and below 1")
        if self.schedule == "trapezoid" and not 0 <= self.decay <= 1 - self.warmup:
            raise UsageError(
                f"optimizer: warmup {self.warmup} and decay {self.decay} must not be negative "
                "and must add up to at most 1"
            )
        check_idle("optimizer", self, [IDLE[self.kind], IDLE[self.schedule]])
        if not self.clip_norm > 0:
            raise UsageError("optimizer.clip_norm must be positive; to disable clipping, use a huge value")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"optimizer.ema is {self.ema}; it must be above 0 and below 1")

    def peak(self, group: Group) -> float:
        """Return the peak learning rate of a group."""
        if self.kind == "adamw":
            return self.learning_rate
        adam = self.adam_learning_rate
        router = adam if self.router_learning_rate is None else self.router_learning_rate
        expert = self.learning_rate if self.expert_learning_rate is None else self.expert_learning_rate
        return {"adam": adam, "router": router, "adamh": self.learning_rate, "adamh_expert": expert}[group]

    def family(self, group: Group) -> str:
        """Return the name of the family to which a group belongs; the weights of a family are clipped together."""
        return FAMILIES[group] if self.kind == "adamh" else WHOLE


def multiplier(optimizer: Optimizer, steps: int) -> Multiplier:
    """Return a function from steps (counted from 0) to multiples of the peak learning rate. For step 0, the multiple is
    greater than 0.
    """
    warm, decay = round(optimizer.warmup * steps), round(optimizer.decay * steps)
    rest = max(steps - warm, 1)
    fall = {
        "linear": optax.linear_schedule(1.0, optimizer.final, rest),
        "cosine": optax.cosine_decay_schedule(1.0, rest, alpha=optimizer.final),
        "constant": optax.constant_schedule(1.0),
        "trapezoid": optax.join_schedules(
            [optax.constant_schedule(1.0), optax.linear_schedule(1.0, optimizer.final, max(decay, 1))], [rest - decay]
        ),
    }[optimizer.schedule]
    if not warm:
        return fall
    return optax.join_schedules([optax.linear_schedule(1 / warm, 1.0, warm - 1), fall], [warm])


def initial_moments(params: Tree) -> Tree:
    """Return both moments, as zeros with the shapes of the parameters."""
    return {"mu": jax.tree.map(jnp.zeros_like, params), "nu": jax.tree.map(jnp.zeros_like, params)}


def update(
    gradients: Tree,
    moments: Tree,
    params: Tree,
    step: Int[Array, ""],
    table: Tree,
    optimizer: Optimizer,
    schedule: Multiplier,
) -> tuple[Tree, Tree, dict[str, Array]]:
    """Return (new parameters, new moments, metrics "grad_norm/<family>" and "learning_rate/<group>"). `step` counts
    from 0. `table` is the model's table of weights; `gradients`, `params` and both moments have its structure.
    """
    norms = norms_by(lambda weight: optimizer.family(weight.group), table, gradients)
    share = schedule(step)
    count = (step + 1).astype(jnp.float32)

    def one(weight: Weight, gradient: Any, mu: Any, nu: Any, value: Any) -> tuple[Any, Any, Any]:
        norm = norms[optimizer.family(weight.group)]
        gradient = gradient.astype(jnp.float32) * jnp.minimum(1.0, optimizer.clip_norm / jnp.maximum(norm, 1e-30))
        mu = optimizer.beta1 * mu + (1 - optimizer.beta1) * gradient
        nu = optimizer.beta2 * nu + (1 - optimizer.beta2) * gradient**2
        corrected = mu / (1 - optimizer.beta1**count)
        direction = corrected / (jnp.sqrt(nu / (1 - optimizer.beta2**count)) + optimizer.epsilon)
        return _moved(value, direction, share * optimizer.peak(weight.group), weight, optimizer), mu, nu

    moved = jax.tree.map(one, table, gradients, moments["mu"], moments["nu"], params)
    params, mu, nu = (jax.tree.map(lambda _, leaf, i=i: leaf[i], table, moved) for i in range(3))
    groups = sorted({weight.group for weight in leaves(table).values()})
    rates = {f"learning_rate/{group}": share * optimizer.peak(group) for group in groups}
    return params, {"mu": mu, "nu": nu}, {f"grad_norm/{name}": norm for name, norm in norms.items()} | rates


def _moved(value: Any, direction: Any, rate: Any, weight: Weight, optimizer: Optimizer) -> Any:
    if optimizer.kind == "adamw":
        return value - rate * (direction + optimizer.weight_decay * value)
    if weight.group in ("adam", "router"):
        return value - rate * direction
    return rotated(value, direction, rate, weight.stack)


def rotated(
    value: Float[Array, "*shape"], direction: Float[Array, "*shape"], rate: Float[Array, ""] | float, stack: int
) -> Float[Array, "*shape"]:
    """Move each matrix against `direction` by `rate` times the matrix's norm, then rescale it to that norm. This is
    AdamH's step. The first `stack` axes index independent matrices.
    """
    axes = tuple(range(stack, value.ndim))
    norm = _norm(value, axes)
    moved = value - rate * norm * direction / jnp.maximum(_norm(direction, axes), 1e-30)
    return moved * norm / jnp.maximum(_norm(moved, axes), 1e-30)


def _norm(x: Any, axes: tuple[int, ...]) -> Any:
    return jnp.sqrt(jnp.sum(x * x, axis=axes, keepdims=True))
