"""Defines the form that an answer must have, and turns answers into attributes. An answer that deviates is invalid: a
number inside a sentence, a label in other letters, or an object with one field too many could mean anything.

    number = [0, 5]             the whole answer is a decimal number in this range      -> score: double
    labels = ["news", ...]      the whole answer is one of the labels                   -> label: string
    fields = {quality = ...}    the whole answer is a JSON object with these fields     -> a column for each field

White space around an answer is ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
LONGEST_STRING = 4096  # characters; a longer value is no attribute
SCORE, LABEL = "score", "label"


class AnswerError(Exception):
    """An answer that does not have the required form. The message never quotes the answer, which may quote a text."""


@dataclass(frozen=True)
class AnswerFormat:
    """The required form. number: the least and the greatest number. fields: a type, or a list of strings, by name."""

    number: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    fields: tuple[tuple[str, str | tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, number: Sequence[float], labels: Sequence[str], fields: Mapping[str, Any]) -> AnswerFormat:
        """Check the settings, and return the form that they describe. Raises ValueError."""
        if sum(map(bool, (number, labels, fields))) != 1:
            raise ValueError("give exactly one of `number`, `labels` and `fields`, which says what an answer is")
        if number and not (len(number) == 2 and all(map(math.isfinite, number)) and number[0] < number[1]):
            raise ValueError(f"number is {list(number)}; it must be the least and the greatest number, such as [0, 5]")
        _check_choices("labels", labels)
        return cls(tuple(number), tuple(labels), tuple((name, _field(name, kind)) for name, kind in fields.items()))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the attributes."""
        if self.number:
            return pa.schema([pa.field(SCORE, pa.float64())])
        if self.labels:
            return pa.schema([pa.field(LABEL, pa.string())])
        return pa.schema([pa.field(name, TYPES[kind if isinstance(kind, str) else "string"])
                          for name, kind in self.fields])  # fmt: skip

    def parse(self, answer: str) -> dict[str, Any]:
        """Return the attributes in an answer. Raises AnswerError."""
        text = answer.strip()
        if self.number:
            if not NUMBER.fullmatch(text):
                raise AnswerError("the answer is not a number")
            if not self.number[0] <= float(text) <= self.number[1]:
                raise AnswerError("the answer is a number outside the range")
            return {SCORE: float(text)}
        if self.labels:
            if text not in self.labels:
                raise AnswerError("the answer is none of the labels")
            return {LABEL: text}
        return self._parse_object(text)

    def _parse_object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text, object_pairs_hook=_pairs, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise AnswerError("the answer is not a JSON object") from error
        if not isinstance(found, dict):
            raise AnswerError("the answer is not a JSON object")
        if found.keys() != {name for name, _ in self.fields}:
            raise AnswerError("the answer does not have exactly the required fields")
        return {name: _value(name, kind, found[name]) for name, kind in self.fields}

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of an answer with fields."""
        properties = {
            name: {"type": kind} if isinstance(kind, str) else {"type": "string", "enum": [*kind]}
            for name, kind in self.fields
        }
        return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


def _value(name: str, kind: str | tuple[str, ...], value: Any) -> Any:
    """Return the value of a field in the type of its column. Raises AnswerError for another type."""
    if not isinstance(kind, str):
        fits = isinstance(value, str) and value in kind
    elif kind == "string":
        fits = isinstance(value, str) and len(value) <= LONGEST_STRING and _is_unicode(value)
    elif kind == "boolean":
        fits = isinstance(value, bool)
    elif kind == "integer":
        fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    else:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300
    if not fits:
        raise AnswerError(f"the field {name!r} of the answer has a value of another type, or none of its choices")
    return float(value) if kind == "number" else value


def _is_unicode(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _field(name: str, kind: Any) -> str | tuple[str, ...]:
    if not FIELD_NAME.fullmatch(name) or name == "id":
        raise ValueError(f"fields: {name!r} cannot be the name of an attribute; use a-z, digits and '_', and not 'id'")
    if isinstance(kind, str) and kind in TYPES:
        return kind
    if not isinstance(kind, list | tuple) or not all(isinstance(one, str) for one in kind):
        raise ValueError(f"fields: {name!r} is {kind!r}; it must be one of {', '.join(TYPES)}, or a list of strings")
    _check_choices(f"fields: {name!r}", kind)
    return tuple(kind)


def _check_choices(what: str, choices: Sequence[str]) -> None:
    if len(set(choices)) < len(choices) or any(not one or one != one.strip() for one in choices):
        raise ValueError(f"{what} is {list(choices)}; each choice must occur once, without white space at its ends")
    if what != "labels" and not choices:
        raise ValueError(f"{what} is an empty list; give at least one choice")
