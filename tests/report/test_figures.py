"""The colors of charts stand out from the card behind them, in both color schemes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from datakit.report.figures import TONES
from datakit.report.templates import asset

LEAST_CONTRAST = 3.0  # WCAG 2.2, success criterion 1.4.11
BLUE = {"accent", "second"}


def schemes() -> list[dict[str, str]]:
    """The colors of the light and of the dark scheme, by name."""
    blocks = re.findall(r":root \{(.+?)\}", asset("datakit.report", "report.css"), re.DOTALL)
    return [dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in blocks]


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colors", schemes(), ids=["light", "dark"])
def test_tones_stand_out_from_the_card(colors: dict[str, str]) -> None:
    for tone in (*TONES, "good", "lost"):
        darker, lighter = sorted((luminance(colors[tone]), luminance(colors["surface"])))
        assert (lighter + 0.05) / (darker + 0.05) >= LEAST_CONTRAST, tone


def test_neighboring_series_differ_in_hue() -> None:
    assert not [pair for pair in pairwise(TONES) if set(pair) == BLUE]
