"""The slow way for a block of JSON Lines that does not parse in one go: line by line, through Python objects.

It decides what a record is: an object in strict JSON, with NaN and the infinities of Python's `json` allowed, at most
48 levels deep. Of a key that stands twice the last value holds; a lone surrogate becomes U+FFFD (counted with invalid
UTF-8); an integer beyond 64 bits becomes a float, as in the columnar parser. Where the values of a column differ in
type within the block they are widened: int -> float -> string.

Cost: a tenth to a half of the speed of the columnar parser (30 to 250 MB/s, the more the longer the records are); taken
by blocks with an unusual line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from datakit.errors import ColumnError
from datakit.normalize.readers.json_lines import DEEP, DEEPEST, Lines
from datakit.normalize.schema_union import shown

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


class NotARecordError(ValueError):
    """Why a line holds no record; never with its content."""


@dataclass(frozen=True)
class Expected:
    """The columns whose values no widening may mend: the text is a string, the id no container. None: any will do."""

    text: str | None
    id: str | None


def parse_lines(
    block: bytes, lines: Lines, expected: Expected, bad: Callable[[int, str], None]
) -> tuple[list[dict[str, Any]], list[int], int]:
    """(records, the line number of each, how many held a lone surrogate); `bad(line, reason)` is told of the others."""
    records, numbers, mended = [], [], 0
    view = memoryview(block)
    for number in range(len(lines)):
        try:
            if lines.kinds[number] == DEEP:
                raise NotARecordError(f"nested deeper than {DEEPEST} levels")
            record, mended_here = _record(view[lines.starts[number] : lines.ends[number]])
            _check(record, expected)
        except NotARecordError as error:
            bad(number, str(error))
            continue
        records.append(record)
        numbers.append(number)
        mended += mended_here
    return records, numbers, mended


def _record(line: memoryview) -> tuple[dict[str, Any], bool]:
    try:
        value, lenient = orjson.loads(line), False
    except orjson.JSONDecodeError:
        value, lenient = _lenient(line), True
    if not isinstance(value, dict):
        raise NotARecordError(f"a JSON {_NAMES[type(value)]}, not an object")
    if not lenient:
        return value, False
    mended = _without_surrogates(value)
    return mended, mended != value


_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "literal"}
_NAMES[type(None)] = "null"


def _check(record: dict[str, Any], expected: Expected) -> None:
    text = record.get(expected.text) if expected.text is not None else None
    if not (text is None or isinstance(text, str)):
        raise NotARecordError(f"{expected.text!r} holds a JSON {_NAMES[type(text)]}, not a string")
    if expected.id is not None and isinstance(record.get(expected.id), dict | list):
        raise NotARecordError(f"{expected.id!r} holds a JSON {_NAMES[type(record[expected.id])]}, which makes no id")


def _lenient(line: memoryview) -> Any:
    try:
        return json.loads(str(line, "utf-8"), parse_int=_integer)
    except json.JSONDecodeError as error:
        raise NotARecordError(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise NotARecordError(f"nested deeper than {DEEPEST} levels") from error


def _integer(digits: str) -> int | float:
    """Python refuses integers of more than 4,300 digits; a float takes any."""
    return int(digits) if len(digits) <= 20 else float(digits)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(entry) for entry in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(entry) for key, entry in value.items()}
    return value


def table_of(records: Sequence[dict[str, Any]], file: str, dropped: Sequence[str]) -> pa.Table:
    """The columns of some records, in the order in which their names appear. Raises ColumnError."""
    names = [name for name in dict.fromkeys(key for record in records for key in record) if name not in dropped]
    columns = []
    for name in names:
        try:
            columns.append(_array([record.get(name) for record in records]))
        except _MixedError as error:
            raise ColumnError(
                f"{file}: column {shown(name)} holds {error}; mend the file, or leave the column "
                f"out (drop = [{shown(name)}] under [normalize])"
            ) from error
    return pa.table(columns, names=names) if names else _without_columns(len(records))


def _without_columns(rows: int) -> pa.Table:
    return pa.table({"": pa.nulls(rows)}).select([])


class _MixedError(ValueError):
    """Values that no type holds."""


def _array(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {dict}:
        return _structs(values)
    if kinds == {list}:
        return _lists(values)
    if dict in kinds or list in kinds:
        raise _MixedError(" beside ".join(sorted({_KINDS[kind] for kind in kinds})))
    if kinds <= {int, float}:
        return _numbers(values, float in kinds)
    if len(kinds) > 1:
        values = _texts(values)
    return pa.array(values, pa.bool_() if kinds == {bool} else pa.string())


_KINDS = {dict: "objects", list: "arrays", str: "strings", int: "numbers", float: "numbers", bool: "literals"}


def _numbers(values: list[Any], floating: bool) -> pa.Array:
    if floating or any(value is not None and not _SMALLEST <= value <= _LARGEST for value in values):
        return pa.array([value if value is None else float(value) for value in values], pa.float64())
    return pa.array(values, pa.int64())


def _texts(values: list[Any]) -> list[str | None]:
    """Scalars of different types as Arrow casts them: `true`, `5`, `0.5`."""
    values = [float(value) if type(value) is int and not _SMALLEST <= value <= _LARGEST else value for value in values]
    floats = iter(pa.array([value for value in values if type(value) is float], pa.float64()).cast(pa.string()))
    texts: list[str | None] = []
    for value in values:
        if value is None or isinstance(value, str):
            texts.append(value)
        elif isinstance(value, float):
            texts.append(next(floats).as_py())
        else:
            texts.append(str(value).lower())  # an integer, or True and False
    return texts


def _structs(values: list[Any]) -> pa.Array:
    names = list(dict.fromkeys(key for value in values if value for key in value))
    missing = pa.array([value is None for value in values])
    if not names:
        return pa.array(values, pa.struct([]))
    children = [_array([value.get(name) if value else None for value in values]) for name in names]
    return pa.StructArray.from_arrays(children, names=names, mask=missing)


def _lists(values: list[Any]) -> pa.Array:
    elements = _array([element for value in values if value for element in value])
    ends, offsets = 0, [0]
    for value in values:
        ends += len(value or ())
        offsets.append(ends)
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, mask=missing)
