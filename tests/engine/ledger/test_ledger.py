"""The ledger survives a driver that was killed in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.ledger.ledger import read_ledger
from datakit.errors import CorruptError
from tests.support.engine.runs import (
    run_numbers,
)


def test_only_the_last_line_may_be_torn(tmp_path: Path) -> None:
    run_numbers(tmp_path)
    (segment,) = (tmp_path / "ledger").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])
    assert list(read_ledger(str(tmp_path)))
    segment.write_bytes(whole[:50] + whole[60:])
    with pytest.raises(CorruptError, match="line 1"):
        list(read_ledger(str(tmp_path)))
