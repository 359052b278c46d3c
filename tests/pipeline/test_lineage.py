"""A finished step is described from manifests alone, with everything it was made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.errors import NoInputError, NotFoundError
from datakit.pipeline import StepDescription, inspect
from tests.support.small_shelf import step


def described(target: Path) -> StepDescription:
    found = inspect(str(target))
    assert isinstance(found, StepDescription)
    return found


def test_lineage_leads_to_the_raw_files(finished: Path) -> None:
    found = described(finished / "root" / "shelf")
    assert {entry.stage for entry in found.lineage} == {
        "consolidate", "dedup", "normalize", "signatures", "download", "train-tokenizer",
    }  # fmt: skip
    assert all(entry.found for entry in found.lineage)
    assert {entry.files for entry in found.lineage if entry.stage == "download"} == {("a.jsonl",), ("b.jsonl",)}


def test_ancestors_of_a_repeated_step_are_listed_once(finished: Path) -> None:
    lineage = described(finished / "root" / "shelf").lineage
    downloads = [entry for entry in lineage if entry.stage == "download"]
    assert len(downloads) == 2
    assert any(entry.seen for entry in lineage if entry.stage == "normalize")


def test_totals_of_sources_add_up(finished: Path) -> None:
    found = described(step(finished, "root/shelf/tokenize-*"))
    assert [part.source for part in found.parts] == ["novels", "letters"]
    assert sum(part.rows for part in found.parts) == found.rows == 143
    assert sum(part.tokens or 0 for part in found.parts) == found.tokens


def test_missing_ancestors_are_named_by_identity(finished: Path, tmp_path: Path) -> None:
    directory = step(finished, "root/shelf/consolidate-*")
    alone = shutil.copytree(directory, tmp_path / directory.name)
    found = described(alone)
    assert [(entry.found, bool(entry.identity)) for entry in found.lineage] == [(False, True)] * 3


def test_unfinished_step_and_nothing_are_errors(finished_copy: Path, tmp_path: Path) -> None:
    directory = step(finished_copy, "root/shelf/consolidate-*")
    (directory / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match="is not finished"):
        inspect(str(directory))
    with pytest.raises(NoInputError):
        inspect(str(tmp_path / "absent"))
