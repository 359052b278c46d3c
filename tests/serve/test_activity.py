"""The seconds of attempts are spread over bins whose number stays bounded."""

from __future__ import annotations

import random

from datakit.serve.activity import BINS, FIRST_WIDTH, Activity


def test_sum_of_bins_equals_the_time_of_all_attempts() -> None:
    activity, chance, total = Activity(1000.0), random.Random(7), 0.0
    for _ in range(2000):
        end = 1000.0 + chance.random() * 5000
        seconds = min(chance.random() * 300, end - 1000.0)
        activity.add(end, seconds)
        total += seconds
    assert len(activity.seconds) <= BINS and activity.width > FIRST_WIDTH
    assert abs(sum(activity.seconds) - total) < 1e-6 * total
    assert abs(activity.total - total) < 1e-6 * total


def test_two_attempts_at_once_count_as_two() -> None:
    activity = Activity(0.0)
    for _ in range(2):
        activity.add(1.0, 1.0)
    assert activity.busy()[:4] == [2.0, 2.0, 2.0, 2.0]


def test_attempt_without_a_sensible_time_does_no_harm() -> None:
    activity = Activity(1e9)
    for end, seconds in ((0.0, 5.0), (1e9, 1e10), (1e9 + 1, -3.0), (1e10, 1e10)):
        activity.add(end, seconds)
    assert len(activity.seconds) <= BINS
