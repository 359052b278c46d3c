"""The ledger survives a driver that was killed in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.ledger.ledger import AttemptLine, UnknownLine, read_ledger
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


def add(folder: Path, line: str) -> None:
    """Append a line to the step's only segment."""
    (segment,) = (folder / "ledger").iterdir()
    segment.write_text(segment.read_text() + line + "\n")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"lease","time":1.5,"holder":{"host":"a"}}',
        '{"kind":"attempt","time":1.5,"phase":"write","key":"1","digest":"d","attempt":1,"cause":"evicted"}',
        '{"kind":"driver","time":1.5,"driver":{"name":"x"}}',
        '{"kind":"phase"}',
    ],
)
def test_lines_of_an_unknown_form_are_skipped(tmp_path: Path, line: str) -> None:
    """A newer version may add kinds of lines, and causes of failures."""
    run_numbers(tmp_path)
    before = list(read_ledger(str(tmp_path)))
    add(tmp_path, line)
    *known, unknown = read_ledger(str(tmp_path))
    assert isinstance(unknown, UnknownLine)
    assert known == before and any(isinstance(one, AttemptLine) for one in known)


@pytest.mark.parametrize("line", ['{"kind":"lease"', "[]", '"lease"', "{}", '{"kind":1}', "null", ""])
def test_lines_that_no_version_writes_are_refused(tmp_path: Path, line: str) -> None:
    run_numbers(tmp_path)
    add(tmp_path, line)
    with pytest.raises(CorruptError, match=r"jsonl, line \d+: .*; remove the file to redo its tasks"):
        list(read_ledger(str(tmp_path)))
