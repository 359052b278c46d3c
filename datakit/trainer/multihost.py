"""Decides which process writes a run's output (the first), makes all processes agree on an answer, and makes them wait
for each other. Each process computes its share of every step, so all must save, evaluate and stop at the same step,
although their clocks and signals differ. A run with only one process exchanges nothing and never waits.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def is_first() -> bool:
    """Return True in the process that writes metrics, markers, the manifest and messages."""
    return jax.process_index() == 0


def any_says(*answers: bool) -> tuple[bool, ...]:
    """Return, for each position, True if any process passed True there; the result is the same in all processes."""
    if jax.process_count() == 1:
        return answers
    return tuple(multihost_utils.process_allgather(np.array(answers)).any(axis=0).tolist())


def least(value: int) -> int:
    """Return the smallest `value` of all processes; with several, it is rounded down to a multiple of 2**20."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.array(value >> 20, np.int32)).min()) << 20


class Votes:
    """Decides, for each step, what any process wants to do after it: `answers(step, before)` returns this process's
    wishes, of which the first is a save. before: True if all processes save after the previous step.

    Processes must not wait for each other after every step, since the devices would then wait for the host. So the
    wishes for a step are exchanged while the previous step is computed, and are read when the step itself is running. A
    single process decides without this delay.
    """

    def __init__(self, answers: Callable[[int, bool], tuple[bool, ...]]) -> None:
        self._answers, self._exchanged = answers, dict[int, jax.Array]()

    def at(self, step: int) -> tuple[bool, ...]:
        """Return, for each wish for `step`, True if any process has it. Steps must be asked for in order."""
        if jax.process_count() == 1:
            return self._answers(step, False)
        found = self._exchanged.pop(step, None)
        decided = tuple(np.asarray(_any(self._answers(step, False)) if found is None else found).tolist())
        self._exchanged[step + 1] = _any(self._answers(step + 1, decided[0]))
        return decided


def _any(answers: tuple[bool, ...]) -> jax.Array:
    """Start to compute the element-wise `or` over all processes; the result is the same array in each of them."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(devices).reshape(jax.process_count(), -1), ("process", "local"))
    own = np.array([answers])
    split = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), own)
    return jax.jit(_over_processes, out_shardings=NamedSharding(mesh, P()))(split)


def _over_processes(answers: jax.Array) -> jax.Array:
    return jnp.any(answers, axis=0)


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
