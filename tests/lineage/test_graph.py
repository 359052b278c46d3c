"""A lineage names every step and source behind a dataset, also after the root has moved or when a step is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.lineage import Lineage, read_lineage
from datakit.storage.manifest import read_manifest
from tests.support.small_shelf import step

STAGES = {
    "download",
    "normalize",
    "signatures",
    "dedup",
    "select",
    "consolidate",
    "train-tokenizer",
    "contract",
    "tokenize",
}


@pytest.fixture
def lineage(finished: Path) -> Lineage:
    return read_lineage(str(finished / "root" / "shelf"))


def test_lineage_holds_every_step_with_its_manifest_numbers(lineage: Lineage) -> None:
    assert {one.stage for one in lineage.steps} == STAGES
    assert len(lineage.steps) == 12
    for one in lineage.steps:
        manifest = read_manifest(one.directory)
        assert (one.identity, one.checksum, one.rows) == (manifest.identity, manifest.checksum, manifest.totals.rows)
        assert (one.parameters, one.counters) == (manifest.parameters, manifest.counters)


def test_steps_follow_the_steps_they_read(lineage: Lineage) -> None:
    seen: set[str] = set()
    for one in lineage.steps:
        assert seen.issuperset(one.inputs), one.name
        seen.add(one.identity)
    assert lineage.last.stage == "tokenize"


def test_lineage_names_library_versions_and_times(lineage: Lineage) -> None:
    one = lineage.last
    assert {"python", "datakit", "pyarrow", "numpy"} <= one.versions[0].keys()
    assert one.started is not None and one.finished is not None and one.started <= one.finished + 1


def test_lineage_of_a_moved_root_is_complete(finished_copy: Path) -> None:
    moved = shutil.move(finished_copy / "root", finished_copy / "elsewhere")
    found = read_lineage(str(Path(moved) / "shelf"))
    assert all(one.found and str(moved) in one.directory for one in found.steps)
    assert all(source.url is not None for source in found.sources)


def test_missing_step_is_named_by_its_identity(finished_copy: Path) -> None:
    place = step(finished_copy, "root/shelf/dedup-*")
    identity = read_manifest(str(place)).identity
    shutil.rmtree(place)
    found = read_lineage(str(finished_copy / "root" / "shelf"))
    missing = [one for one in found.steps if not one.found]
    assert [(one.stage, one.identity) for one in missing] == [("dedup", identity)]


def test_directory_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no finished step"):
        read_lineage(str(tmp_path))
