"""What a step is, as a number: canonical JSON under xxh3-128.

A fingerprint covers the stage's name, its format version, every content parameter with its default made explicit, and
the identities of what it reads. Two recipes that say the same thing in other words share their steps; a parameter that
changes the output can never be forgotten, because all of them are always in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import msgspec
import xxhash

SHOWN_DIGITS = 12
T = TypeVar("T")


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no white space and no NaN: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def spelled_out(config: Any) -> dict[str, Any]:
    """A dataclass as plain data with every default written out.

    Not `msgspec.to_builtins`: a dataclass that msgspec made keeps its defaults on the class, and they would be missing.
    """
    return msgspec.to_builtins(asdict(config))


def config_of(parameters: Mapping[str, Any], kind: type[T]) -> T:
    """Return the dataclass `kind` with the values that `parameters` has for its fields; other keys are ignored."""
    names = {entry.name for entry in fields(kind)}  # pyright: ignore[reportArgumentType] - every kind is a dataclass
    return msgspec.convert({name: value for name, value in parameters.items() if name in names}, kind)


def fingerprint(stage: str, version: int, parameters: dict[str, Any], inputs: Sequence[str]) -> str:
    """32 hex digits. `inputs` are upstream identities in the order in which the stage reads them."""
    content = {"stage": stage, "version": version, "parameters": parameters, "inputs": list(inputs)}
    return xxhash.xxh3_128_hexdigest(canonical_json(content))


def identity(step_fingerprint: str, quarantined: Sequence[str]) -> str:
    """What downstream builds on: the fingerprint, or, if records were lost, a hash of it and of the sorted list."""
    if not quarantined:
        return step_fingerprint
    return xxhash.xxh3_128_hexdigest(canonical_json([step_fingerprint, sorted(quarantined)]))


def short(value: str) -> str:
    """The digits that paths and people see."""
    return value[:SHOWN_DIGITS]
