"""Defines the settings that every optimizer has, their limits, and which of them are inputs of the compiled step.

The learning rates and the settings of the schedule are *inputs*: the host computes one number per group of weights and
step (`schedules.learning_rates`), and the compiled step receives these numbers. So trials that differ only in learning
rates, schedule or number of steps share one compiled program. The other settings are constants of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from datakit.errors import UsageError
from datakit.toml_config import check_idle

SCHEDULE = ("schedule", "warmup", "decay", "final")
NO_DECAY = {"decay": "unless the schedule is trapezoid"}
IDLE: dict[str, dict[str, str]] = {  # schedule -> settings without effect, and the reason
    "linear": NO_DECAY,
    "cosine": NO_DECAY,
    "constant": NO_DECAY | {"final": "with a constant schedule"},
    "trapezoid": {},
}


@dataclass(frozen=True)
class Settings:
    """Settings that all optimizers share. A field whose name ends in `learning_rate` is an input of the step."""

    learning_rate: float = 0.001
    clip_norm: float = 1.0  # largest norm of the gradients of a family of weights; see `clipping.py`
    schedule: Literal["linear", "cosine", "constant", "trapezoid"] = "linear"
    warmup: float = 0.1  # share of the training steps spent on warm-up
    decay: float = 0.2  # share of the training steps spent on the final decay; trapezoid only
    final: float = 0.0  # learning rate at the end, as a multiple of the peak rate
    ema: float | None = None  # decay factor of the averaged weights; None: keep no average

    def __post_init__(self) -> None:
        check_not_negative(self, [name for name in input_names(self) if name.endswith("learning_rate")] + ["final"])
        if not 0 <= self.warmup < 1:
            raise UsageError(f"optimizer.warmup is {self.warmup}; it must be at least 0 and below 1")
        if self.schedule == "trapezoid" and not 0 <= self.decay <= 1 - self.warmup:
            raise UsageError(
                f"optimizer: warmup {self.warmup} and decay {self.decay} must not be negative "
                "and must add up to at most 1"
            )
        check_idle("optimizer", self, [IDLE[self.schedule]])
        if not self.clip_norm > 0:
            raise UsageError("optimizer.clip_norm must be positive; to disable clipping, use a huge value")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"optimizer.ema is {self.ema}; it must be above 0 and below 1")


def check_not_negative(settings: Any, names: Iterable[str]) -> None:
    """Raise UsageError for a setting that is negative, infinite or NaN. A setting may be None."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"optimizer.{name} is {value}; use a finite number that is not negative")


def check_shares(settings: Any, names: Iterable[str]) -> None:
    """Raise UsageError for a setting that is not at least 0 and below 1, such as the decay factor of a moment."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise UsageError(f"optimizer.{name} is {getattr(settings, name)}; it must be at least 0 and below 1")


def input_names(settings: Any) -> list[str]:
    """Return the names of the settings that are inputs of the compiled step."""
    names = [field.name for field in fields(settings)]
    return [name for name in names if name.endswith("learning_rate") or name in SCHEDULE]
