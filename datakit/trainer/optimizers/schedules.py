"""Computes the learning rate of each group of weights for each step, on the host.

    rate(group, step) = peak(group) x share(step)

The compiled step receives these rates as inputs. They depend only on the settings, the step and the number of steps,
are computed in float64 and rounded once to fp32, so a resumed run gets exactly the same rates. This costs about a
microsecond per group and step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from datakit.trainer.models.weights import Group
from datakit.trainer.optimizers.protocol import Optimizer
from datakit.trainer.optimizers.settings import Settings


def learning_rates(optimizer: Optimizer, groups: Iterable[Group], step: int, steps: int) -> dict[Group, np.float32]:
    """Return the learning rate of each group for a step (counted from 0) of a run of `steps` steps."""
    multiple = share(optimizer, step, steps)
    return {group: np.float32(optimizer.peak(group) * multiple) for group in groups}


def share(settings: Settings, step: int, steps: int) -> float:
    """Return the multiple of the peak learning rate for a step (counted from 0) of a run of `steps` steps.

    During warm-up, the multiple rises linearly and is greater than 0 at step 0. After it, "linear" and "cosine" fall to
    `final` at the end of the run; "trapezoid" stays at 1 and falls linearly in the last steps.
    """
    warm = round(settings.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    done, rest = step - warm, max(steps - warm, 1)
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "trapezoid":
        decay = round(settings.decay * steps)
        done, rest = done - (rest - decay), max(decay, 1)
    progress = min(max(done / rest, 0.0), 1.0)
    fallen = (1 - math.cos(math.pi * progress)) / 2 if settings.schedule == "cosine" else progress
    return 1 + (settings.final - 1) * fallen
