"""Draws sources of JSON Lines with what is hard to read: large integers, lists that begin with null, repeated keys,
invalid UTF-8, values of several types, and lines that are no records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.support.normalize.json_lines import clean, odd_lines

FIRST = (  # every source has the columns of `where`, and no `where` drops both records
    b'{"text": "first", "k": 1, "s": "a", "flag": true}',
    b'{"text": "second", "k": 5, "s": "bb", "flag": false}',
)
WHERE: dict[str, Callable[[Any, Any, Any], bool | None]] = {
    "k > 2": lambda k, s, flag: k is not None and k > 2,
    "k IS NULL OR flag": lambda k, s, flag: k is None or flag,
    "s = 'a' OR k < 2": lambda k, s, flag: s == "a" or (k is not None and k < 2),
    "length(s) > 1 AND NOT flag": lambda k, s, flag: s is not None and len(s) > 1 and flag is False,
}
TYPES = {"k": "int64", "s": "string", "flag": "bool"}


@dataclass(frozen=True)
class Case:
    """Files of lines, and how they are read. chunk, part: the sizes in bytes of the reader's chunks and slices."""

    files: tuple[tuple[bytes, ...], ...]
    end: bytes = b"\n"
    where: str | None = None
    declared: bool = False
    drop: tuple[str, ...] = ()
    chunk: int = 1 << 20
    part: int = 1 << 20

    @property
    def contents(self) -> dict[str, bytes]:
        files = ((*FIRST, *self.files[0]), *self.files[1:])
        return {f"{number}.jsonl": self.end.join(lines) for number, lines in enumerate(files)}


def clean_deep(value: Any) -> Any:
    if isinstance(value, list):
        return [clean_deep(entry) for entry in value]
    if isinstance(value, dict):
        return {clean(key): clean_deep(entry) for key, entry in value.items()}
    return clean(value)


LARGE = [(1 << 53) + 1, -(1 << 53) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, 1234567890123456789, 10**25]
INTEGERS = st.integers(-9, 9) | st.sampled_from(LARGE)
SCALARS = st.one_of(
    st.none(),
    INTEGERS,
    st.booleans(),
    st.floats(width=32) | st.sampled_from([0.1, -0.0, 1e16, float("nan"), float("inf"), 5.0]),
    st.sampled_from(["", "a", "2020-01-01", "2020-01-01T00:00:00Z", "é", "\ud800", "\0", "7"]),
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
NULL_LED = st.lists(st.none() | st.integers(0, 99), max_size=4).map(lambda values: [None, *values])
SOFT = {"k": st.none() | st.integers(0, 5), "s": st.sampled_from([None, "a", "bb"]), "flag": st.none() | st.booleans()}
COLUMNS = {
    "id": SCALARS.filter(lambda value: not isinstance(value, float) or math.isfinite(value)),
    "n": INTEGERS | st.none(),
    "x": st.one_of(INTEGERS, st.floats(), st.none()),
    "list": NULL_LED | st.none() | st.lists(st.integers(0, 9), max_size=3),
    "days": st.lists(st.sampled_from([None, "2020-01-01", "no", "2020-01-01T00:00:00Z"]), max_size=3),
    "meta": st.dictionaries(st.sampled_from(["a", "day", "deep"]), SCALARS, max_size=3) | st.none(),
    "any": SCALARS,
    "nested": NESTED,
}


@st.composite
def _record_lines(draw: st.DrawFn, number: int) -> bytes:
    """A record whose text begins with its number; a few have a repeated key or invalid UTF-8."""
    names = draw(st.sets(st.sampled_from(sorted(COLUMNS)), max_size=4))
    rest = draw(st.sampled_from(["", "", "é", "\0", " \n", "\ud800", "漢"]))
    text = draw(st.sampled_from([f"{number} {rest}"] * 12 + ["", "\0", None]))
    record = {"text": text, **draw(st.fixed_dictionaries({}, optional=SOFT))}
    record |= {name: draw(COLUMNS[name]) for name in sorted(names)}
    safe = record if draw(st.booleans()) else clean_deep(record)
    line = json.dumps(safe, ensure_ascii=safe is record).encode()
    change = draw(st.sampled_from(["", "", "", "", "repeat", "bytes"]))
    if change == "repeat":
        name = draw(st.sampled_from(["n", "any", "list", "k"]))
        line = line[:-1] + f', "{name}": {json.dumps(draw(COLUMNS.get(name, SOFT.get(name, SCALARS))))}}}'.encode()
    elif change == "bytes":
        line = line.replace(
            b'"text": "', b'"text": "' + draw(st.sampled_from([b"\xff", b"\xe9\xc3", b"\xed\xa0\x80"])), 1
        )
    return line


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
    numbers = iter(range(sum(sizes) + len(sizes)))
    odd = odd_lines.filter(lambda line: not line.strip(b" \t\r").startswith(b"["))
    lines = [
        [draw(_record_lines(next(numbers))) if draw(st.integers(0, 9)) else draw(odd) for _ in range(size)]
        for size in sizes
    ]
    lines = [[draw(_record_lines(next(numbers))), *file] for file in lines]  # a file without texts is refused
    where = draw(st.none() | st.sampled_from(sorted(WHERE)))
    drop = draw(st.sets(st.sampled_from([*sorted(COLUMNS)]), max_size=4))
    return Case(
        tuple(tuple(file) for file in lines),
        draw(st.sampled_from([b"\n", b"\r\n", b"\n \n"])),
        where,
        draw(st.booleans()),
        tuple(sorted(drop | {"nested"} if draw(st.integers(0, 3)) else drop)),
        draw(st.integers(1, 300)),
        draw(st.integers(50, 2000) | st.just(1 << 20)),
    )


CASES = _cases()
