"""Runs a fuzzer for a given time: rounds of Hypothesis, each from a seed that alone decides its cases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CASES_A_ROUND = 100


@dataclass
class Tally:
    """Progress and result of a fuzzer. failed: the seed of the round that failed, or None; error: its exception."""

    seconds: float = 0.0
    cases: int = 0
    failed: int | None = None
    error: BaseException | None = None


def fuzz(cases: st.SearchStrategy[Any], check: Callable[[Any], None], first_seed: int, seconds: float) -> Tally:
    """Run rounds from `first_seed` on until the time is over or a round finds something, which is then reduced.

    0 seconds: one whole round.
    """
    tally, start = Tally(), time.monotonic()
    end = start + seconds if seconds else float("inf")
    number = first_seed
    while tally.failed is None and (number == first_seed or time.monotonic() - start < seconds):
        try:
            _round(cases, check, number, tally, end)
        except Exception as error:  # noqa: BLE001 - whatever a fuzzer finds is reported
            tally.failed, tally.error = number, error
        number += 1
    tally.seconds = time.monotonic() - start
    return tally


def _round(cases: st.SearchStrategy[Any], check: Callable[[Any], None], number: int, tally: Tally, end: float) -> None:
    found: list[None] = []

    def one(case: Any) -> None:
        if not found and tally.cases and time.monotonic() > end:
            return  # only skipped before anything was found: reducing must repeat what it saw
        tally.cases += not found
        try:
            check(case)
        except Exception:
            found.append(None)
            raise

    setting = settings(
        max_examples=CASES_A_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        print_blob=False,
    )
    seed(number)(setting(given(case=cases)(one)))()
