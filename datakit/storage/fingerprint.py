"""Decides what identifies a step: hashes its stage, format version, complete parameters and inputs into a fingerprint.

A fingerprint is the xxh3-128 of canonical JSON that contains the stage's name, its format version, every content
parameter (with defaults written out), and the identities of the step's inputs. Equivalent recipes share their steps.
Since all parameters are always included, no parameter that changes the output can be forgotten.
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
    """Encode a value as JSON with sorted keys, no white space and no NaN, so that equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def spelled_out(config: Any) -> dict[str, Any]:
    """Convert a dataclass to plain data with every default written out. `msgspec.to_builtins` alone would omit
    defaults, because an instance that msgspec has created keeps them only on its class.
    """
    return msgspec.to_builtins(asdict(config))


def config_of(parameters: Mapping[str, Any], kind: type[T]) -> T:
    """Return an instance of the dataclass `kind` with values from `parameters`; keys that name no field are ignored."""
    names = {entry.name for entry in fields(kind)}  # pyright: ignore[reportArgumentType] - every kind is a dataclass
    return msgspec.convert({name: value for name, value in parameters.items() if name in names}, kind)


def fingerprint(stage: str, version: int, parameters: dict[str, Any], inputs: Sequence[str]) -> str:
    """Return a step's fingerprint, 32 hex digits. inputs: the identities of the step's inputs, in the order in which
    they are read.
    """
    content = {"stage": stage, "version": version, "parameters": parameters, "inputs": list(inputs)}
    return xxhash.xxh3_128_hexdigest(canonical_json(content))


def identity(step_fingerprint: str, quarantined: Sequence[str], answers: str = "") -> str:
    """Return a step's identity, on which downstream steps depend: its fingerprint or, if records were quarantined or
    the step has used answers of model servers, a hash of the fingerprint, of the list of these records and of `answers`
    (the hash of the answers).
    """
    if not quarantined and not answers:
        return step_fingerprint
    content = [step_fingerprint, sorted(quarantined), *([answers] if answers else [])]
    return xxhash.xxh3_128_hexdigest(canonical_json(content))


def short(value: str) -> str:
    """Return the leading digits of a hash, which stand for it in paths and messages."""
    return value[:SHOWN_DIGITS]
