"""The Croissant file of a dataset passes the official validator, and its records can be loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import mlcroissant
import pytest

from datakit.errors import UsageError
from datakit.lineage import read_lineage
from datakit.lineage.croissant import croissant
from datakit.storage.manifest import read_manifest
from tests.support.small_shelf import step


def described(folder: Path) -> Path:
    """Write the file into the directory of the consolidate step, where it belongs."""
    place = step(folder, "root/shelf/consolidate-*") / "croissant.json"
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


def test_lineage_without_documents_is_refused(finished: Path) -> None:
    with pytest.raises(UsageError, match="no single step that holds documents"):
        croissant(read_lineage(str(step(finished, "root/sources/novels/download-*"))))
