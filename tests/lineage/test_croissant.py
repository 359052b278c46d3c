"""The Croissant file of a dataset passes the official validator, and its records can be loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import mlcroissant
import pytest

from datakit.errors import UsageError
from datakit.lineage import Lineage, StepRecord, read_lineage
from datakit.lineage.croissant import croissant
from datakit.storage.manifest import read_manifest
from datakit.validate.validation import validate
from tests.support.small_shelf import run_with_columns, step


def described(folder: Path) -> Path:
    """Write the file into the dataset's directory, where it belongs."""
    place = folder / "root" / "shelf" / "croissant.json"
    place.write_text(json.dumps(croissant(read_lineage(str(folder / "root" / "shelf")))))
    return place


def test_official_validator_finds_no_error(finished_copy: Path) -> None:
    dataset = mlcroissant.Dataset(jsonld=str(described(finished_copy)))
    assert dataset.metadata.issues.errors == set()
    assert dataset.metadata.name == "shelf"


def test_records_of_each_source_can_be_loaded(finished_copy: Path) -> None:
    dataset = mlcroissant.Dataset(jsonld=str(described(finished_copy)))
    records = list(dataset.records("letters"))
    manifest = read_manifest(str(step(finished_copy, "root/shelf/consolidate-*")))
    assert len(records) == sum(part.rows for part in manifest.partitions_of("letters"))
    assert {record["letters/source"] for record in records} == {b"letters"}


def test_manifest_is_listed_with_its_hash(finished_copy: Path) -> None:
    place = described(finished_copy)
    (listed,) = [one for one in json.loads(place.read_text())["distribution"] if one["@type"] == "cr:FileObject"]
    assert listed["sha256"] == hashlib.sha256((place.parent / listed["contentUrl"]).read_bytes()).hexdigest()


def test_file_is_no_damage(finished_copy: Path) -> None:
    place = described(finished_copy)
    for target in (place.parent, place.parent.parent):
        assert validate(str(target)).findings == []


def test_every_column_is_listed(described_columns: Path) -> None:
    """A consolidate step's files have all columns of their source, even those that its manifest does not name."""
    (listed,) = json.loads(described_columns.read_text())["recordSet"]
    columns = {field["name"]: field["dataType"] for field in listed["field"]}
    assert columns["n"] == "sc:Integer" and {"tags", "edited_id"} <= columns.keys()
    assert "meta (struct<page: int64>)" in listed["description"], "no reader loads a struct"
    dataset = mlcroissant.Dataset(jsonld=str(described_columns))
    assert dataset.metadata.issues.errors == set()
    records = list(dataset.records("notes"))
    assert sorted(record["notes/n"] for record in records) == list(range(9))
    assert records[0]["notes/tags"] == [b"a", b"b"]


@pytest.fixture
def described_columns(tmp_path: Path) -> Path:
    """The file about a dataset whose records have a number, a struct and a list."""
    place = run_with_columns(tmp_path) / "croissant.json"
    place.write_text(json.dumps(croissant(read_lineage(str(place.parent)))))
    return place


def test_lineage_without_documents_is_refused(finished: Path) -> None:
    with pytest.raises(UsageError, match="no single step that holds documents"):
        croissant(read_lineage(str(step(finished, "root/sources/novels/download-*"))))


@pytest.mark.parametrize(("left", "found"), [(2, True), (0, False)])
def test_documents_that_have_left_are_not_described(tmp_path: Path, left: int, found: bool) -> None:
    """A token cache is not made from the consolidate step, and the normalize step has documents that left."""
    steps = (
        StepRecord("normalize web", "normalize", "web", str(tmp_path / "n"), "1", True, rows=10),
        StepRecord("select", "select", "d", str(tmp_path / "s"), "2", found, rows=left),
        StepRecord("tokenize d", "tokenize", "d", str(tmp_path / "t"), "3", True, rows=8),
    )
    with pytest.raises(UsageError, match=r"holds the documents that stay.*a consolidate step would"):
        croissant(Lineage("d", str(tmp_path / "t"), (), steps))
