"""Reasons and representatives of removals are checked range by range."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.storage.manifest import read_manifest
from datakit.validate.between import removals, spill
from datakit.validate.finding import Result
from datakit.validate.subject import Settings, open_subject
from tests.support.small_shelf import step


def result_of(root: Path, deep: bool = False) -> Result:
    """Make the check of the dedup step."""
    directory = str(step(root, "root/shelf/dedup-*"))
    result = Result("removals")
    removals.check(open_subject(directory, read_manifest(directory), Settings(deep=deep))[0], result)
    return result


def test_many_ranges_give_the_same_result(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = result_of(finished)
    assert (whole.findings, whole.amounts["removal"], whole.amounts["document"]) == ([], 4, 147)
    monkeypatch.setattr(removals, "RANGE_IDS", 10)
    monkeypatch.setattr(spill, "BUCKET_REMOVALS", 1)
    assert result_of(finished).amounts == whole.amounts
    assert result_of(finished).findings == []
