"""Lines of JSON files, good ones and odd ones, for Hypothesis, and an oracle that reads them with Python's `json`."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

LONE = re.compile("[\ud800-\udfff]")


def oracle(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
    """(offset, record) of the good lines, and the offsets of the others."""
    good, bad, offset = [], [], 0
    for line in data.split(b"\n"):
        begin = offset + len(line) - len(line.lstrip(b" \t\r"))
        offset += len(line) + 1
        if not line.strip(b" \t\r"):
            continue
        try:
            record = json.loads(line.strip(b" \t\r").decode("utf-8", "replace"))
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("text", ""), str | None):
            bad.append(begin)
            continue
        good.append((begin, clean(record)))
    return good, bad


def clean(value: Any) -> Any:
    if isinstance(value, str):
        return LONE.sub("\ufffd", value)
    return {clean(key): clean(entry) for key, entry in value.items()} if isinstance(value, dict) else value


texts = st.text(st.characters(codec=None), max_size=12)  # lone surrogates included
dates = st.sampled_from(["2020-01-01", "2020-01-01T00:00:00Z", "2020-01-01 00:00:00", "not a date"])
records = st.fixed_dictionaries(
    {"text": texts},
    optional={
        "id": st.one_of(st.none(), texts),
        "day": dates,
        "n": st.integers(-(1 << 63), (1 << 63) - 1),
        "x": st.floats(allow_nan=False),
        "flag": st.booleans(),
        "meta": st.fixed_dictionaries({}, optional={"a": st.integers(0, 9), "day": dates, "deep": st.just({"z": 1})}),
        "tags": st.lists(dates, max_size=3),
    },
)
ODD = [
    b"", b"  ", b"\r", b"null", b"[1]", b"{}", b"{}{}", b"}{", b"\0", b'"}', b'{"text":5}', b'{"text":["a"]}',
    b'{"text":null}', b'{"text":"a","text":"b"}', b'{"text":"caf\xe9"}', b'{"text":"cut', b'{"x":1e999}',
]  # fmt: skip
odd_lines = st.one_of(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), st.sampled_from(ODD))
lines = st.one_of(
    records.map(lambda record: json.dumps(record).encode()),
    records.map(lambda record: json.dumps(clean(record), ensure_ascii=False).encode()),
    odd_lines,
)
