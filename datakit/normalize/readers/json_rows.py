"""Decides what a JSON record is, states the reason why a line is not one, and parses line by line the chunks that the
columnar parser cannot read. A record is a JSON object, nested at most 48 levels deep. Its syntax is strict, except that
NaN and infinities are allowed, as in Python's `json`. If a key occurs more than once, the last value counts. A lone
surrogate becomes U+FFFD (counted as invalid UTF-8). An integer that does not fit into 64 bits keeps its digits, and all
values of its column become strings. If a column mixes integers and floats, its integers become floats or, if one of
them is above 2**53 or below -2**53, all its numbers become strings. If a column mixes other kinds of scalars, all its
values become strings. An id that is a number keeps its digits as written. A line is not a record if its text, its id or
a field that the source's transform requires has the wrong type; such a value is never converted to a string. Parsing
line by line reaches 30 to 250 MB/s (the longer the records, the faster), a tenth to a half of the columnar parser's
speed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa

from datakit.engine.user_code import RequiredText
from datakit.errors import ColumnError
from datakit.normalize.columns.number_types import LARGEST_EXACT, float_texts
from datakit.normalize.columns.schema_union import shown
from datakit.normalize.config import Config
from datakit.normalize.readers.json_lines import DEEP, DEEPEST, Lines
from datakit.normalize.settings.column_settings import DROP, ERROR, KIND_MARK, NULL, STRING
from datakit.normalize.settings.text_forms import TextForm
from datakit.normalize.texts.json_values import wrong_value
from datakit.printable import one_line

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1
_LONG_INTEGER = re.compile(rb"\d{19}")  # an integer that does not fit into 64 bits has at least 19 digits


class LargeInteger(str):
    """The digits of an integer that does not fit into 64 bits."""

    __slots__ = ()


class NotARecordError(ValueError):
    """A line is not a record. The message gives the reason, but never the line's content."""


@dataclass(frozen=True)
class Expected:
    """The names of the columns to check: `text` must hold strings, and `id` must not hold objects or arrays. If either
    name is None, that column is not checked.

    digits: the column whose numbers keep their digits as written. texts: the column and the fields in which the
    source's transform requires text; None if it requires none. form: how the text is made of several values; None if it
    is the value of the column `text`.
    """

    text: str | None
    id: str | None
    digits: str | None
    texts: RequiredText | None = None
    form: TextForm | None = None


def expected_of(config: Config, texts: RequiredText | None = None) -> Expected:
    """Return what a source's settings expect of its records. A transform makes the text and the id itself."""
    if config.transform is not None:
        return Expected(None, None, config.id, texts)
    text = config.text_column if config.text_form is None else None
    return Expected(text, config.id, config.id, texts, config.text_form)


def parse_lines(
    chunk: bytes, lines: Lines, expected: Expected, bad: Callable[[int, str], None]
) -> tuple[list[dict[str, Any]], list[int], int]:
    """Return the records, the index of each record's line, and the number of records that had a lone surrogate.

    bad: called for every line that is not a record, with the line's index and the reason.
    """
    records, numbers, surrogates = [], [], 0
    view = memoryview(chunk)
    for number in range(len(lines)):
        try:
            if lines.kinds[number] == DEEP:
                raise NotARecordError(f"nested deeper than {DEEPEST} levels")
            line = view[lines.starts[number] : lines.ends[number]]
            record, changed = _record(line)
            _check(record, expected)
            if expected.digits is not None and isinstance(record.get(expected.digits), float):
                record[expected.digits] = _as_written(line, expected.digits)
        except NotARecordError as error:
            bad(number, str(error))
            continue
        records.append(record)
        numbers.append(number)
        surrogates += changed
    return records, numbers, surrogates


def _record(line: memoryview) -> tuple[dict[str, Any], bool]:
    try:
        value, lenient = orjson.loads(line), False
        if _LONG_INTEGER.search(line):
            value = _lenient(line)
    except orjson.JSONDecodeError:
        value, lenient = _lenient(line), True
    if not isinstance(value, dict):
        raise NotARecordError(f"a JSON {_NAMES[type(value)]}, not an object")
    if not lenient:
        return value, False
    cleaned = _without_surrogates(value)
    return cleaned, cleaned != value


def _as_written(line: memoryview, name: str) -> str:
    return json.loads(str(line, "utf-8"), parse_float=str, parse_int=str, parse_constant=str)[name]


_NAMES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "literal"}
_NAMES[LargeInteger] = "number"
_NAMES[type(None)] = "null"


def _check(record: dict[str, Any], expected: Expected) -> None:
    text = record.get(expected.text) if expected.text is not None else None
    if not (text is None or type(text) is str):
        raise NotARecordError(f"{expected.text!r} holds a JSON {_NAMES[type(text)]}, not a string")
    if expected.form is not None:
        reason = wrong_value(record, expected.form, lambda value: _NAMES[type(value)])
        if reason is not None:
            raise NotARecordError(reason)
    if expected.id is not None and isinstance(record.get(expected.id), dict | list):
        raise NotARecordError(
            f"{expected.id!r} holds a JSON {_NAMES[type(record[expected.id])]}, which cannot be an id"
        )
    if expected.texts is not None:
        _check_texts(record.get(expected.texts.column), expected.texts)


def _check_texts(value: Any, expected: RequiredText) -> None:
    """Raise NotARecordError unless `value` is a list of objects whose required fields hold strings. The list, an object
    or a field may also be null.
    """
    if not (value is None or isinstance(value, list)):
        raise NotARecordError(f"{expected.column!r} holds a JSON {_NAMES[type(value)]}, not an array of objects")
    for entry in value or ():
        if entry is None:
            continue
        if not isinstance(entry, dict):
            raise NotARecordError(f"an entry of {expected.column!r} is a JSON {_NAMES[type(entry)]}, not an object")
        for name in expected.fields:
            found = entry.get(name)
            if not (found is None or type(found) is str):
                kind = _NAMES[type(found)]
                raise NotARecordError(f"{name!r} in {expected.column!r} holds a JSON {kind}, not a string")


def _lenient(line: memoryview) -> Any:
    try:
        return json.loads(str(line, "utf-8"), parse_int=_integer)
    except json.JSONDecodeError as error:
        raise NotARecordError(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from error
    except RecursionError as error:
        raise NotARecordError(f"nested deeper than {DEEPEST} levels") from error


def _integer(digits: str) -> int | LargeInteger:
    """Parse an integer. The length is checked first, since `int` refuses more than 4,300 digits."""
    if len(digits) <= 20 and _SMALLEST <= (value := int(digits)) <= _LARGEST:
        return value
    return LargeInteger(digits)


def _without_surrogates(value: Any) -> Any:
    if type(value) is str:
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(entry) for entry in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(entry) for key, entry in value.items()}
    return value


def table_of(
    records: Sequence[dict[str, Any]],
    file: str,
    reads: Callable[[str], bool],
    conflicts: Mapping[str, str] = MappingProxyType({}),
) -> pa.Table:
    """Convert records to a table, with columns in order of first appearance. reads: returns True for the name of a
    column that is needed. conflicts: the policies of columns (columns/conflicts.py). Raises ColumnError.
    """
    names = [name for name in dict.fromkeys(key for record in records for key in record) if reads(name)]
    columns: dict[str, pa.Array] = {}
    for name in names:
        try:
            columns |= _columns(name, [record.get(name) for record in records], conflicts.get(name))
        except _MixedError as error:
            refused = ColumnError(
                f"{one_line(file)}: column {shown(name)} holds {error}; fix the file, leave the column out "
                f"(drop = [{shown(name)}] under [normalize]), or store its values as strings "
                f'(conflicts = {{ {shown(name)} = "string" }})'
            )
            refused.mixed = name
            raise refused from error
    if not names:
        return pa.table({"": pa.nulls(len(records))}).select([])  # no columns, but the number of rows is kept
    return pa.table([*columns.values()], names=[*columns])


def _columns(name: str, values: list[Any], policy: str | None) -> dict[str, pa.Array]:
    """Return a column by its name or, if values of several kinds are carried apart, one column for each kind."""
    if policy == STRING:
        texts = [orjson.dumps(value).decode() if isinstance(value, dict | list) else value for value in values]
        return {name: pa.array(_texts(texts), pa.string())}
    if policy not in (DROP, NULL):
        return {name: _array(values, strict=policy == ERROR)}
    kinds = [None if value is None else _KIND_NAMES[type(value)] for value in values]
    found = [kind for kind in dict.fromkeys(kinds) if kind is not None]
    if not found:
        return {name: pa.nulls(len(values))}
    return {
        f"{name}{KIND_MARK}{kind}": _array([v if k == kind else None for v, k in zip(values, kinds, strict=True)])
        for kind in found
    }


_KIND_NAMES: dict[type, str] = {  # as in columns/conflicts.py; a large integer keeps its digits as a string
    dict: "object", list: "list", str: "string", LargeInteger: "string", int: "number", float: "number", bool: "boolean"
}  # fmt: skip


class _MixedError(ValueError):
    """The values of a column have no common type."""


def _array(values: list[Any], strict: bool = False) -> pa.Array:
    """Convert values to an array. strict: True if values must not become strings for the sake of others."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {dict}:
        return _structs(values, strict)
    if kinds == {list}:
        return _lists(values, strict)
    if dict in kinds or list in kinds:
        raise _MixedError(" and ".join(sorted({_KINDS[kind] for kind in kinds})))
    if kinds == {int} or (kinds <= {int, float} and _exact_as_floats(values)):
        return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
    if strict and len(kinds) > 1:
        raise _MixedError(" and ".join(sorted({_KINDS[kind] for kind in kinds})) + " that only strings could hold")
    if len(kinds) > 1:
        values = _texts(values)
    return pa.array(values, pa.bool_() if kinds == {bool} else pa.string())


_KINDS = {dict: "objects", list: "arrays", str: "strings", int: "numbers", float: "numbers", bool: "literals"}
_KINDS[LargeInteger] = "numbers"


def _exact_as_floats(values: list[Any]) -> bool:
    return all(abs(value) <= LARGEST_EXACT for value in values if type(value) is int)


def _texts(values: list[Any]) -> list[str | None]:
    """Convert scalars of different types to strings such as `true`, `5` and `0.5`, as `schema_union.fit` does."""
    floats = iter(float_texts(pa.array([value for value in values if type(value) is float], pa.float64())))
    texts: list[str | None] = []
    for value in values:
        if value is None or isinstance(value, str):
            texts.append(value)
        elif isinstance(value, float):
            texts.append(next(floats).as_py())
        else:
            texts.append(str(value).lower())  # an integer, True or False
    return texts


def _structs(values: list[Any], strict: bool) -> pa.Array:
    names = list(dict.fromkeys(key for value in values if value for key in value))
    missing = pa.array([value is None for value in values])
    if not names:
        return pa.array(values, pa.struct([]))
    children = [_array([value.get(name) if value else None for value in values], strict) for name in names]
    return pa.StructArray.from_arrays(children, names=names, mask=missing)


def _lists(values: list[Any], strict: bool) -> pa.Array:
    elements = _array([element for value in values if value for element in value], strict)
    offsets = list(itertools.accumulate((len(value or ()) for value in values), initial=0))
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, mask=missing)
