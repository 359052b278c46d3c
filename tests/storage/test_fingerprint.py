"""Equal steps have equal fingerprints, whatever the order in which they are written down."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from datakit.storage.fingerprint import canonical_json, fingerprint, identity, short, spelled_out


def test_order_of_keys_does_not_matter() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert canonical_json(one) == canonical_json(other) == b'{"a":1,"b":{"c":2,"d":3}}'
    assert fingerprint("s", 1, one, ["x", "y"]) == fingerprint("s", 1, other, ["x", "y"])


CHANGED = [("t", 1, {}, ["x"]), ("s", 2, {}, ["x"]), ("s", 1, {"a": 0}, ["x"]), ("s", 1, {}, [])]


@pytest.mark.parametrize("changed", CHANGED)
def test_every_part_enters_the_fingerprint(changed: tuple) -> None:
    assert fingerprint(*changed) != fingerprint("s", 1, {}, ["x"])


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError):
        canonical_json({"a": float("nan")})


def test_defaults_are_written_out() -> None:
    @dataclass(frozen=True)
    class Config:
        given: int
        default: tuple[str, ...] = ("a",)

    assert spelled_out(Config(1)) == {"given": 1, "default": ("a",)}


def test_skipped_records_change_the_identity() -> None:
    assert identity("f" * 32, []) == "f" * 32
    assert identity("f" * 32, ["b:1", "a:2"]) == identity("f" * 32, ["a:2", "b:1"]) != "f" * 32
    assert short("f" * 32) == "f" * 12


def test_answers_of_model_servers_change_the_identity() -> None:
    found = [identity("f" * 32, records, answers) for records in ([], ["a:1"]) for answers in ("", "0" * 32, "1" * 32)]
    assert len(set(found)) == 6 and found[0] == "f" * 32
