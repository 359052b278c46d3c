"""Pins are written once, listed, and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import CorruptError, NewerFormatError, UsageError
from datakit.leases.pins import pin_url, read_pins, refuse_pinned, remove_pin, write_pin
from tests.support.s3 import s3_root

ONE, OTHER = "sources/web/normalize-000000000000", "shelf/tokenize-000000000000"


def check_life_of_a_pin(root: str) -> None:
    write_pin(root, ONE, "for a paper")
    write_pin(root, OTHER, "for a training run")
    assert [(pin.step, pin.reason) for pin in read_pins(root)] == [(OTHER, "for a training run"), (ONE, "for a paper")]
    with pytest.raises(UsageError, match="is pinned already, for this reason: for a paper"):
        write_pin(root, ONE, "another")
    with pytest.raises(UsageError, match="so it is not removed; the reason for the pin: for a paper"):
        refuse_pinned(root, [f"{root}/{ONE}"])
    remove_pin(root, ONE)
    refuse_pinned(root, [f"{root}/{ONE}"])
    with pytest.raises(UsageError, match="is not pinned"):
        remove_pin(root, ONE)
    assert [pin.step for pin in read_pins(root)] == [OTHER]


def test_pin_keeps_its_reason_until_it_is_removed(tmp_path: Path) -> None:
    check_life_of_a_pin(str(tmp_path))


def test_pins_work_in_a_store() -> None:
    with s3_root() as root:
        check_life_of_a_pin(root)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", CorruptError),
        ('{"format": "datakit.pin/2"}', NewerFormatError),
        ('{"format": "datakit.pin/1", "step": "../x", "reason": "", "time": 0, "host": ""}', CorruptError),
    ],
    ids=["damaged", "newer", "leads out of the root"],
)
def test_unreadable_pin_is_named(tmp_path: Path, content: str, error: type[Exception]) -> None:
    path = Path(pin_url(str(tmp_path), OTHER))
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(error, match=r"shelf\+tokenize-000000000000.json"):
        read_pins(str(tmp_path))
