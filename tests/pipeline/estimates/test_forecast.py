"""A forecast respects the bounds of every schedule: the critical path, the total work, and the number of slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.pipeline.estimates.forecast import Forecast, Work, forecast


@st.composite
def recipes(draw: st.DrawFn) -> list[Work]:
    """Draw steps, each of which reads some of the steps before it."""
    works: list[Work] = []
    for number in range(draw(st.integers(1, 12))):
        needs = draw(st.lists(st.sampled_from([work.label for work in works]), unique=True)) if works else []
        seconds = draw(st.just(0.0) | st.floats(0.001, 100.0))
        works.append(Work(f"step {number}", seconds, draw(st.integers(1, 50)), tuple(needs)))
    return works


@given(recipes(), st.integers(1, 16))
def test_bounds(works: list[Work], slots: int) -> None:
    found, total = forecast(works, slots), sum(work.seconds for work in works)
    assert found.cpu_seconds == pytest.approx(total)
    assert found.seconds >= max(found.path_seconds, total / slots) - 1e-6
    assert found.seconds <= total + 1e-6, "running one task at a time is never faster"
    assert 0.0 <= found.utilisation <= 1.0 + 1e-6
    by_label = {work.label: work for work in works}
    assert all(above in by_label[label].needs for above, label in zip(found.path, found.path[1:], strict=False))
    assert sum(by_label[label].seconds / min(slots, by_label[label].tasks) for label in found.path) == pytest.approx(
        found.path_seconds
    )


def test_sources_side_by_side_then_a_step_that_reads_all() -> None:
    works = [Work("join", 4.0, 2, ("a", "b")), Work("a", 6.0, 1), Work("b", 2.0, 1)]
    assert forecast(works, 2) == Forecast(8.0, 12.0, ("a", "join"), 8.0, 12.0 / 16.0)


def test_complete_run_takes_no_time() -> None:
    assert forecast([], 4) == Forecast(0.0, 0.0, (), 0.0, 0.0)
