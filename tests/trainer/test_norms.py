"""Norms outside their band raise an alarm; histograms count every value once."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.trainer.norms import HISTOGRAM_BINS, LEAST_EXPONENT, alarms, histograms


def test_norms_outside_their_band_are_alarms() -> None:
    begun = {"embed": 100.0, "adamh": 10.0, "router": 0.0}
    calm = {"embed": 480.0, "adamh": 10.05, "router": 3.0}
    assert alarms(calm, begun, (0.2, 5.0), fixed={"adamh"}) == {}
    drifted = {"embed": 2100.0, "adamh": 10.2, "router": 3.0}
    assert alarms(drifted, begun, (0.2, 5.0), fixed={"adamh"}) == pytest.approx({"embed": 21.0, "adamh": 1.02})
    assert alarms(drifted, begun, (0.2, 5.0), fixed=()) == pytest.approx({"embed": 21.0})


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_histograms_count_values_by_their_power_of_two(values: list[float]) -> None:
    weights = {"embed": jnp.asarray(values, jnp.float32)}
    nothing = {"embed": jnp.zeros(len(values))}
    after = {"params": weights, "moments": {"mu": nothing}}
    found = histograms(("params", "updates"), nothing, {"params": nothing}, after)
    wanted = np.zeros(HISTOGRAM_BINS, int)
    for value in np.abs(np.asarray(values, np.float32)):
        exponent = int(np.floor(np.log2(value))) if 2.0**-47 <= value < 2.0**17 else (-99 if value < 1 else 99)
        wanted[np.clip(exponent - LEAST_EXPONENT, 0, HISTOGRAM_BINS - 1)] += 1
    assert found["params/histogram/embed"].tolist() == wanted.tolist()
    assert found["updates/histogram/embed"].tolist() == wanted.tolist()
