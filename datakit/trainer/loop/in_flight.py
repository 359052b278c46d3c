"""Keeps up to two steps in flight: the loop starts a step before it has the results of the previous one, so the devices
never wait for the host.

A thread copies the results of each step to the host as soon as they are ready, and notes the time. So the duration of a
step is known even while the loop waits for data: it is the time from the later of two moments, the start of the step
and the end of the previous one, until the step's results are ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from datakit.trainer.device_feed import Placed
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree

Rates = Mapping[Any, Any]  # the learning rate of each group
# A compiled step: (state, batch, rates) -> (state, results)
Advance = Callable[[Tree, Tokens, Rates], tuple[Tree, dict[str, Any]]]


@dataclass(frozen=True)
class Completed:
    """A step whose results are on the host. duration, waited: the seconds of the step, and of its wait for data."""

    step: int
    results: Any
    placed: Placed
    duration: float
    waited: float

    @property
    def finite(self) -> bool:
        """False if the loss or a norm is NaN or infinite."""
        return bool(self.results["finite"])


@dataclass(frozen=True)
class _Started:
    step: int
    placed: Placed
    waited: float
    at: float
    arrival: Future[tuple[Any, float]]


class InFlight:
    """The steps that have been started and not yet completed, oldest first."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="results")
        self._started: list[_Started] = []
        self._last_ready = 0.0

    def start(self, step: int, advance: Advance, state: Tree, placed: Placed, rates: Rates, waited: float) -> Tree:
        """Start a step, which reuses the buffers of `state`. Return the next state, whose arrays may not be ready."""
        at = time.perf_counter()
        state, results = advance(state, placed.batch, rates)
        self._started.append(_Started(step, placed, waited, at, self._thread.submit(_arrived, results)))
        return state

    def complete(self, leave: int = 0) -> list[Completed]:
        """Wait for the oldest steps until only `leave` are in flight, and return them in order. Raises the errors of
        the devices.
        """
        done = []
        while len(self._started) > leave:
            started = self._started.pop(0)
            results, ready = started.arrival.result()
            duration = ready - max(started.at, self._last_ready)
            self._last_ready = ready
            done.append(Completed(started.step, results, started.placed, duration, started.waited))
        return done

    def close(self) -> None:
        """Drop the steps that are still in flight, and end the thread."""
        self._started.clear()
        self._thread.shutdown(cancel_futures=True)


def _arrived(results: Any) -> tuple[Any, float]:
    return jax.device_get(results), time.perf_counter()
