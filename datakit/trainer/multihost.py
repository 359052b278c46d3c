"""Coordinates the processes of one run: actions that all must take together, and those of only the first one.

Each process computes its share of every step, so all must save, evaluate and stop at the same step. Their clocks
and signals differ, so `any_says` makes them agree on an answer in one small exchange, which a single process skips.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Return True in the process that writes metrics, markers, the manifest and messages."""
    return jax.process_index() == 0


def any_says(*answers: bool) -> tuple[bool, ...]:
    """Return, for each answer, True if any process gave it; the result is the same in all processes."""
    if jax.process_count() == 1:
        return answers
    return tuple(multihost_utils.process_allgather(np.array(answers)).any(axis=0).tolist())


def meet(place: str) -> None:
    """Wait until all processes have reached this call; `place` names it."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)
