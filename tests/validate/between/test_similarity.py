"""Similarities are recomputed for a sample of the removals, or for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.storage.manifest import read_manifest
from datakit.validate.between import similarity, spill
from datakit.validate.finding import Result
from datakit.validate.subject import Settings, open_subject
from tests.support.small_shelf import step


def result_of(root: Path, deep: bool = False) -> Result:
    """Make the check of the dedup step."""
    directory = str(step(root, "root/shelf/dedup-*"))
    result = Result("similarity")
    similarity.check(open_subject(directory, read_manifest(directory), Settings(deep=deep))[0], result)
    return result


def test_sample_is_always_the_same(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = result_of(finished, deep=True)
    assert (everything.findings, everything.amounts["pair"]) == ([], 4)
    assert result_of(finished).amounts == everything.amounts, "there are fewer removals than the sample may have"
    monkeypatch.setattr(similarity, "SAMPLE", 2)
    assert result_of(finished).amounts == result_of(finished).amounts
    assert result_of(finished).amounts["pair"] < 4
    assert result_of(finished, deep=True).amounts["pair"] == 4


def test_many_buckets_give_the_same_result(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BUCKET_REMOVALS", 1)
    found = result_of(finished, deep=True)
    assert (found.findings, found.amounts["pair"]) == ([], 4)
