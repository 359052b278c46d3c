"""Norms outside their band raise an alarm."""

from __future__ import annotations

import pytest

from datakit.trainer.norms import alarms


def test_norms_outside_their_band_are_alarms() -> None:
    begun = {"embed": 100.0, "adamh": 10.0, "router": 0.0}
    calm = {"embed": 480.0, "adamh": 10.05, "router": 3.0}
    assert alarms(calm, begun, (0.2, 5.0), fixed=True) == {}
    drifted = {"embed": 2100.0, "adamh": 10.2, "router": 3.0}
    assert alarms(drifted, begun, (0.2, 5.0), fixed=True) == pytest.approx({"embed": 21.0, "adamh": 1.02})
    assert alarms(drifted, begun, (0.2, 5.0), fixed=False) == pytest.approx({"embed": 21.0})
