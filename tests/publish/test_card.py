"""The dataset card, the lineage and the Croissant file say what is published, and nothing about the publisher's
machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlcroissant
import pytest
import yaml

from datakit.consolidate import card as step_card
from datakit.errors import CorruptError, LicenseError, NotFoundError, UsageError
from datakit.lineage import StepRecord
from datakit.publish import card, prepare, publish
from datakit.publish.documents import find_documents
from datakit.storage.manifest import read_manifest
from tests.support.published.shelf import ADDRESS, SOURCES
from tests.support.small_shelf import step


@pytest.fixture(scope="module")
def published(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("out") / "published"
    publish(prepare(str(dataset), str(place)))
    return place


def front_matter(place: Path) -> dict[str, object]:
    return yaml.safe_load((place / card.FILE_NAME).read_text().split("---\n")[1])


def test_front_matter_states_license_task_size_and_files(published: Path) -> None:
    facts = front_matter(published)
    assert (facts["license"], facts["license_name"]) == ("other", "mixed")
    assert facts["task_categories"] == ["text-generation"]
    assert facts["size_categories"] == ["1K<n<10K"]
    configs = facts["configs"]
    assert isinstance(configs, list)
    assert [config["config_name"] for config in configs] == ["default", *SOURCES]
    for config in configs:
        (files,) = config["data_files"]
        for pattern in [files["path"]] if isinstance(files["path"], str) else files["path"]:
            assert list(published.glob(pattern)), pattern


def test_card_holds_counts_licenses_personal_data_columns_and_steps(published: Path, dataset: Path) -> None:
    text = (published / card.FILE_NAME).read_text()
    own = (step(dataset, "consolidate-*") / "README.md").read_text()
    table = own[own.index("| source | partitions |") : own.index("\n## Made from")]
    assert table in text, "the counts of the step's own card"
    assert "| laws | [https://example.org/terms](https://example.org/terms) |" in text
    assert "| letters | found in 6 documents as read: email masked; ipv4 kept |" in text
    assert "text (large_string)" in text
    for manifest in (read_manifest(str(step(dataset, "dedup-*"))), read_manifest(str(step(dataset, "select-*")))):
        assert manifest.identity in text


def test_nothing_tells_where_the_publisher_keeps_the_files(published: Path, dataset: Path) -> None:
    for path in published.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert str(dataset.parent.parent).encode() not in data, path
    letters = next(published.glob("data/letters/*"))
    import pyarrow.parquet as pq

    assert not any(ADDRESS in text for text in pq.read_table(letters)["text"].to_pylist())


def test_lineage_lists_every_step_with_its_parameters(published: Path) -> None:
    facts = json.loads((published / card.LINEAGE).read_text())
    assert [source["license"] for source in facts["sources"]] == ["CC-BY-4.0", "MIT", "https://example.org/terms"]
    steps = {one["name"]: one for one in facts["steps"]}
    assert steps["dedup shelf"]["parameters"]["threshold"] == 0.8
    assert steps["normalize novels"]["counters"]["normalize/duplicates"] == 1
    identities = {one["identity"] for one in facts["steps"]}
    assert all(set(one["inputs"]) <= identities for one in facts["steps"])


def test_addresses_of_model_servers_are_left_out() -> None:
    servers = {"quality": {"url": "https://models.internal/v1", "model": "m"}, "personal": {"kinds": ["email"]}}
    step = StepRecord("annotate web", "annotate", "web", "d", "0", True, parameters={"annotators": servers})
    shown = card._parameters(step)["annotators"]
    assert shown == {"quality": {"model": "m"}, "personal": {"kinds": ["email"]}}
    download = StepRecord("download web", "download", "web", "d", "0", True, parameters={"url": "hf://datasets/a/b"})
    assert card._parameters(download) == {"url": "hf://datasets/a/b"}


def test_official_validator_accepts_the_croissant_file(published: Path) -> None:
    described = mlcroissant.Dataset(jsonld=str(published / card.CROISSANT))
    assert described.metadata.issues.errors == set()
    records = list(described.records("letters"))
    assert len(records) == 599 and {one["letters/source"] for one in records} == {b"letters"}


def test_the_same_step_gives_the_same_publication(dataset: Path, published: Path, tmp_path: Path) -> None:
    publish(prepare(str(step(dataset, "consolidate-*")), str(tmp_path / "again")))
    for path in published.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(published)).read_bytes(), path


def test_step_card_keeps_the_heading_that_the_published_card_looks_for() -> None:
    assert card.MADE_FROM in step_card.render("d", "0", [], [], [])


def test_a_damaged_step_card_is_refused(dataset_copy: Path, tmp_path: Path) -> None:
    (step(dataset_copy, "consolidate-*") / "README.md").write_text("---\n---\nmine\n")
    with pytest.raises(CorruptError, match=r"README\.md differs from what its manifest states"):
        prepare(str(dataset_copy), str(tmp_path / "out"))


def test_only_documents_are_published(dataset: Path, finished: Path) -> None:
    with pytest.raises(
        LicenseError, match="the license of source 'novels' is not known; the license of source 'letters'"
    ):
        find_documents(str(finished / "root" / "shelf"))
    with pytest.raises(UsageError, match="write = false"):
        find_documents(str(step(finished, "root/sources/novels/normalize-*")))
    with pytest.raises(UsageError, match="no single step that holds documents"):
        find_documents(str(step(finished, "root/shelf/dedup-*")))
    with pytest.raises(UsageError, match="contains no finished step"):
        find_documents(str(finished / "shelf"))


def test_unknown_fate_of_personal_data_is_an_error(dataset_copy: Path) -> None:
    step(dataset_copy, "select-*/manifest.json").unlink()
    with pytest.raises(NotFoundError, match="what became of personal data is not known"):
        find_documents(str(dataset_copy))
