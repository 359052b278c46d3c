"""Noise gives no alarm; a third more CPU time or memory does, and so does a limit that is exceeded."""

from __future__ import annotations

import random

import msgspec
import pytest

from datakit.ferries.calibration import Calibration
from datakit.ferries.ferry import Limits
from datakit.ferries.machine import Machine
from datakit.ferries.record import Outcome, Part, Record
from datakit.ferries.regression import RECORDS, baseline, beyond_limits, regressions

MACHINE = Machine("a processor", 2, 8, "3.11")
MIB = 1 << 20


def part(cpu: float, rss: float, name: str = "run", factor: float = 1.0, steady: bool = True) -> Part:
    return Part(name, cpu, cpu * factor, int(rss * MIB), Calibration(factor, factor), steady=steady)


def record(parts: list[Part], number: int = 0, machine: Machine = MACHINE, outcome: Outcome = "passed") -> Record:
    return Record(
        "tiny", f"{number:032x}", "tiny-0", float(number), number + 1.0, outcome, "run", True, 1.0, machine, "0.1",
        parts,
    )  # fmt: skip


def noisy(generator: random.Random, cpu: float = 20.0, rss: float = 400.0) -> list[Part]:
    """One part with 4 % noise, on a machine whose speed changes by up to half."""
    factor = generator.uniform(0.8, 1.3)
    return [part(cpu * generator.gauss(1, 0.04), rss * generator.gauss(1, 0.02), factor=factor)]


@pytest.mark.parametrize("seed", range(20))
def test_unchanged_runs_give_no_alarm(seed: int) -> None:
    generator, history = random.Random(seed), []
    for number in range(20):
        parts = noisy(generator)
        assert regressions(parts, history) == [], f"run {number}"
        history.append(record(parts, number))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("runs", [1, 5, 20])
def test_third_more_gives_one_alarm(seed: int, runs: int) -> None:
    generator = random.Random(seed)
    history = [record(noisy(generator), number) for number in range(runs)]
    slow = regressions([part(20.0 * 1.3 * generator.gauss(1, 0.01), 400.0)], history)
    assert [failure.cause for failure in slow] == ["run takes more CPU time"]
    large = regressions([part(20.0, 400.0 * 1.3)], history)
    assert [failure.cause for failure in large] == ["run takes more memory"]


def test_noise_band_never_hides_a_third() -> None:
    wild = [record([part(10.0 if number % 2 else 30.0, 400.0)], number) for number in range(20)]
    (failure,) = regressions([part(20.0 * 1.3, 400.0)], wild)
    assert "+30%" in failure.detail and "the median of 20 runs is 20.0 calibrated CPU-s" in failure.detail


def test_tiny_parts_and_interrupted_parts_give_no_alarm() -> None:
    history = [record([part(0.2, 40.0, "run/dedup"), part(20.0, 400.0, "interrupt", steady=False)])]
    assert regressions([part(0.6, 60.0, "run/dedup")], history) == []
    assert regressions([part(60.0, 400.0, "interrupt", steady=False)], history) == []
    assert len(regressions([part(60.0, 600.0, "interrupt", steady=False)], history)) == 1
    assert regressions([part(60.0, 600.0, "new stage")], history) == []


def test_baseline_is_sound_and_of_the_same_kind() -> None:
    other = msgspec.structs.replace(MACHINE, cores=4)
    history = [
        *(record([], number) for number in range(RECORDS + 5)),
        record([], 100, machine=other), record([], 101, outcome="failed"), record([], 102, outcome="killed"),
        record([], 103, outcome="no baseline"), msgspec.structs.replace(record([], 104), scale=0.5),
    ]  # fmt: skip
    found = baseline(history, "tiny", 1.0, MACHINE)
    assert [int(one.started) for one in found] == [*range(6, RECORDS + 5), 103]
    assert baseline(history, "other", 1.0, MACHINE) == []


def test_exceeded_limits_are_named() -> None:
    parts = [part(20.0, 400.0), part(10.0, 300.0, "train"), part(20.0, 400.0, "run/dedup")]
    assert list(beyond_limits(parts, Limits(30.0, 30.0, 400 * MIB))) == []
    causes = [failure.cause for failure in beyond_limits(parts, Limits(29.0, 29.0, 399 * MIB))]
    assert causes == ["the time limit is exceeded", "the CPU limit is exceeded", "the memory limit is exceeded"]


def test_limits_include_the_tasks_of_a_cluster() -> None:
    parts = [part(2.0, 100.0), part(30.0, 900.0, "run/dedup"), part(20.0, 300.0, "run/tokenize")]
    assert list(beyond_limits(parts, Limits(10.0, 50.0, 900 * MIB))) == []
    causes = [failure.cause for failure in beyond_limits(parts, Limits(10.0, 49.0, 899 * MIB))]
    assert causes == ["the CPU limit is exceeded", "the memory limit is exceeded"]
