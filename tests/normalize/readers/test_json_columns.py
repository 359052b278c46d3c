"""The columnar JSON parser: strings that look like dates."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.normalize.readers import read_json, rows


def test_dates_stay_strings_in_every_chunk(tmp_path: Path) -> None:
    """A column may look like dates in one chunk, and like something else or nothing in the next."""
    values = ["2020-01-01"] * 5 + ["n/a"] * 5 + [None] * 5 + ["2021-01-01"] * 5 + [7] * 5
    data = b"".join(json.dumps({"text": "t", "day": value}).encode() + b"\n" for value in values)
    found, _ = read_json(tmp_path, data, 150)
    assert len(found) >= 4
    days = [row.get("day") for row in rows(found)]
    assert days[:20] == values[:20]
    assert {str(day) for day in days[20:]} == {"7"}, "a number next to dates becomes a string"
