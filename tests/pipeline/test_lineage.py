"""A finished step is described from manifests alone, with everything it was made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import datakit
from datakit.errors import NoInputError, NotFoundError, UsageError
from datakit.pipeline.lineage import StepDescription, inspect
from datakit.storage import urls
from tests.support.small_shelf import run_with_columns, step


def described(target: Path) -> StepDescription:
    found = inspect(str(target))
    assert isinstance(found, StepDescription)
    return found


def test_lineage_leads_to_the_raw_files(finished: Path) -> None:
    found = described(finished / "root" / "shelf")
    assert {entry.stage for entry in found.lineage} == {
        "select", "dedup", "normalize", "signatures", "download", "train-tokenizer", "contract",
    }  # fmt: skip
    assert all(entry.found for entry in found.lineage)
    assert {entry.files for entry in found.lineage if entry.stage == "download"} == {("a.jsonl",), ("b.jsonl",)}


def test_ancestors_of_a_repeated_step_are_listed_once(finished: Path) -> None:
    lineage = described(finished / "root" / "shelf").lineage
    downloads = [entry for entry in lineage if entry.stage == "download"]
    assert len(downloads) == 2
    assert any(entry.seen for entry in lineage if entry.stage == "normalize")


def test_consolidated_columns_are_all_listed(tmp_path: Path) -> None:
    """A consolidate step's manifest names only the columns that all sources have; its files have more."""
    place = step(run_with_columns(tmp_path), "consolidate-*")
    columns = {column.name: column.type for column in described(place).schema}
    assert {"id", "text", "edited_id", "n", "meta", "tags"} <= columns.keys()
    assert columns["meta"] == "struct<page: int64>"
    (partition,) = place.glob("data/notes/part-*.parquet")
    partition.write_bytes(b"damaged")
    assert [column.name for column in described(place).schema][-1] == "edited_id"


def test_totals_of_sources_add_up(finished: Path) -> None:
    found = described(step(finished, "root/shelf/tokenize-*"))
    assert [part.source for part in found.parts] == ["novels", "letters"]
    assert sum(part.rows for part in found.parts) == found.rows == 143
    assert sum(part.tokens or 0 for part in found.parts) == found.tokens


def test_each_manifest_is_read_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, read = step(finished, "root/shelf/tokenize-*"), list[str]()
    fetch = urls.read_bytes
    monkeypatch.setattr(urls, "read_bytes", lambda url: read.append(url) or fetch(url))
    lineage = described(place).lineage
    assert len(lineage) > len(read) == len(set(read)) > 8


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


def test_dataset_stands_for_its_current_run(finished_copy: Path) -> None:
    recipe, root = finished_copy / "shelf" / "shelf.toml", finished_copy / "root"
    first = datakit.open_cache(str(root / "shelf")).directory
    other = datakit.run(recipe, root, workers=1, settings=["tokenize.train.vocabulary=420"])
    assert other.cache != first
    assert described(root / "shelf").directory == datakit.open_cache(str(root / "shelf")).directory == other.cache
    assert first in described(root / "shelf").beside
    datakit.run(recipe, root, workers=1, until="consolidate")
    assert described(root / "shelf").stage == "consolidate"
    assert datakit.open_cache(str(root / "shelf")).directory == other.cache, "a run without a cache makes none current"
    assert datakit.run(recipe, root, workers=1).reused
    assert datakit.open_cache(str(root / "shelf")).directory == first, "the run that ended last counts"
    (root / "shelf" / "latest.json").unlink()
    with pytest.raises(UsageError, match="2 finished tokenize steps"):
        inspect(str(root / "shelf"))
