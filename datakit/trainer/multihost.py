"""Several processes as one run: what they must do alike, and what only the first does.

Each process computes its share of every step, so whoever saves, evaluates or ends must do so at the same step as all
others. Their clocks and signals differ; `any_says` settles it with one tiny exchange. A single process pays nothing.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Whether this process writes what there is one of: metrics, markers, the manifest, lines for people."""
    return jax.process_index() == 0


def any_says(*answers: bool) -> tuple[bool, ...]:
    """Each answer as "does any process say so", the same on all."""
    if jax.process_count() == 1:
        return answers
    return tuple(multihost_utils.process_allgather(np.array(answers)).any(axis=0).tolist())


def meet(place: str) -> None:
    """Go on when all processes have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)
