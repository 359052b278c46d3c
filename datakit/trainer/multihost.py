"""Decides which process writes a run's output (the first), makes all processes agree on an answer, and makes them wait
for each other. Each process computes its share of every step, so all must save, evaluate and stop at the same step,
although their clocks and signals differ. A run with only one process exchanges nothing and never waits.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Return True in the process that writes metrics, markers, the manifest and messages."""
    return jax.process_index() == 0


def any_says(*answers: bool) -> tuple[bool, ...]:
    """Return, for each position, True if any process passed True there; the result is the same in all processes."""
    if jax.process_count() == 1:
        return answers
    return tuple(multihost_utils.process_allgather(np.array(answers)).any(axis=0).tolist())


def disagree(value: str) -> bool:
    """Return True if `value` differs between the processes; its length must be the same in all of them."""
    if jax.process_count() == 1:
        return False
    found = multihost_utils.process_allgather(np.frombuffer(value.encode(), np.uint8))
    return bool((found != found[0]).any())


def meet(place: str) -> None:
    """Wait until all processes have reached this call; `place` is a name for the call."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)
