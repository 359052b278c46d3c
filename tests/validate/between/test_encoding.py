"""A sample of documents is encoded again; long documents and custom tokenizers are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.storage.manifest import read_manifest
from datakit.validate.between import encoding
from datakit.validate.finding import Result
from datakit.validate.subject import open_subject
from tests.support.small_shelf import step


def result_of(directory: Path) -> Result:
    result = Result("encoding")
    encoding.check(open_subject(str(directory), read_manifest(str(directory)))[0], result)
    return result


def test_documents_of_every_source_are_encoded(finished: Path) -> None:
    found = result_of(step(finished, "root/shelf/tokenize-*"))
    assert (found.findings, found.skipped) == ([], [])
    # of the normalized documents that are chosen, those that leave are not in the cache
    assert 2 * encoding.DOCUMENTS - 2 <= found.amounts["encoded document"] <= 2 * encoding.DOCUMENTS


def test_long_documents_are_not_in_the_sample(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LONGEST_BYTES", 10)
    found = result_of(step(finished, "root/shelf/tokenize-*"))
    assert (found.findings, found.amounts["encoded document"]) == ([], 0)
