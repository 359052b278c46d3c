"""A step is started before the previous one is done, and its duration is that of the devices alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from datakit.trainer.device_feed import Placed
from datakit.trainer.loop import in_flight
from datakit.trainer.loop.in_flight import InFlight
from datakit.trainer.models.protocol import Tokens

NOTHING: Any = np.zeros((1, 1))
PLACED = Placed(Tokens(NOTHING, NOTHING, NOTHING), 1, 1, 1, "")


@pytest.fixture
def steps() -> Iterator[InFlight]:
    steps = InFlight()
    yield steps
    steps.close()


class Device:
    """Computes steps, each of which is ready when `ready[step]` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready = [threading.Event() for _ in range(4)]
        monkeypatch.setattr(in_flight.jax, "device_get", self.get)

    def get(self, results: dict[str, int]) -> dict[str, int]:
        assert self.ready[results["step"]].wait(60)
        return results

    def advance(self, state: Any, batch: Any, rates: Any) -> tuple[Any, dict[str, Any]]:
        return {"step": state["step"] + 1}, {"step": state["step"]}


def test_a_step_starts_before_the_previous_one_is_done(steps: InFlight, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    state = steps.start(1, device.advance, {"step": 0}, PLACED, {}, 0.0)
    state = steps.start(2, device.advance, state, PLACED, {}, 0.5)
    device.ready[0].set()
    (first,) = steps.complete(leave=1)
    assert (first.step, first.results) == (1, {"step": 0})
    assert steps.complete(leave=1) == []
    device.ready[1].set()
    (second,) = steps.complete()
    assert (second.step, second.waited, state) == (2, 0.5, {"step": 2})


def test_waiting_for_data_is_no_part_of_a_duration(steps: InFlight, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.ready[0].set()
    state = steps.start(1, device.advance, {"step": 0}, PLACED, {}, 0.0)
    time.sleep(0.5)  # the next batch is late
    device.ready[1].set()
    steps.start(2, device.advance, state, PLACED, {}, 0.5)
    first, second = steps.complete()
    assert first.duration + second.duration < 0.5


def test_two_steps_in_flight_are_not_counted_twice(steps: InFlight, monkeypatch: pytest.MonkeyPatch) -> None:
    device, started = Device(monkeypatch), time.perf_counter()
    state = steps.start(1, device.advance, {"step": 0}, PLACED, {}, 0.0)
    steps.start(2, device.advance, state, PLACED, {}, 0.0)
    for event in device.ready:
        time.sleep(0.1)
        event.set()
    first, second = steps.complete()
    assert min(first.duration, second.duration) > 0
    assert first.duration + second.duration <= time.perf_counter() - started


def test_errors_of_the_device_are_raised(steps: InFlight, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(in_flight.jax, "device_get", fail)
    steps.start(1, Device.advance.__get__(object()), {"step": 0}, PLACED, {}, 0.0)
    with pytest.raises(RuntimeError, match="out of memory"):
        steps.complete()
