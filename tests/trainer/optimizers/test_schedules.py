"""Schedules reach their published points and depend only on the step and the number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.trainer.optimizers import adamh
from datakit.trainer.optimizers.schedules import learning_rates, share

SCHEDULES = ("linear", "cosine", "constant", "trapezoid")


def settings_of(schedule: str, **changes: Any) -> adamh.Config:
    final = {} if schedule == "constant" else {"final": 0.1}
    return adamh.Config(schedule=schedule, **final, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1}),
        ("cosine", {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1}),
        ("constant", {0: 0.1, 9: 1.0, 50: 1.0, 100: 1.0}),
        ("trapezoid", {0: 0.1, 9: 1.0, 79: 1.0, 90: 0.55, 100: 0.1}),
    ],
)
def test_schedules_hit_their_published_points(schedule: str, expected: dict[int, float]) -> None:
    found = {step: share(settings_of(schedule), step, 100) for step in expected}
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedules_equal_those_of_optax(schedule: str) -> None:
    fall = {
        "linear": optax.linear_schedule(1.0, 0.1, 90),
        "cosine": optax.cosine_decay_schedule(1.0, 90, alpha=0.1),
    }[schedule]
    theirs: Any = optax.join_schedules([optax.linear_schedule(0.1, 1.0, 9), fall], [10])
    ours = [share(settings_of(schedule), step, 100) for step in range(101)]
    np.testing.assert_allclose(ours, [float(theirs(step)) for step in range(101)], atol=1e-6)


@given(
    schedule=st.sampled_from(SCHEDULES),
    steps=st.integers(1, 300),
    warmup=st.floats(0, 0.9),
    step=st.integers(0, 299),
)
def test_a_share_is_at_most_one_and_above_zero_at_first(schedule: str, steps: int, warmup: float, step: int) -> None:
    settings = settings_of(schedule, warmup=warmup, **({"decay": 0.1} if schedule == "trapezoid" else {}))
    assert share(settings, 0, steps) > 0
    assert 0 <= share(settings, min(step, steps), steps) <= 1


def test_each_group_has_its_own_peak() -> None:
    settings = adamh.Config(learning_rate=0.1, adam_learning_rate=0.2, expert_learning_rate=0.3, warmup=0.5)
    found = learning_rates(settings, ("adam", "adamh", "adamh_expert", "router"), 0, 20)
    assert found == {name: np.float32(peak / 10) for name, peak in zip(found, (0.2, 0.1, 0.3, 0.2), strict=True)}
    assert all(type(rate) is np.float32 for rate in found.values())
