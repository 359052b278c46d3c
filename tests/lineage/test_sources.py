"""Sources show their URL without a query string, their revision, and the license of the recipe that ran last."""

from __future__ import annotations

import json
from pathlib import Path

import datakit
from datakit.lineage import read_lineage
from datakit.lineage.sources import SourceRecord
from datakit.storage.manifest import read_manifest
from tests.support.small_shelf import step, tree


def sources(root: Path, dataset: str = "shelf") -> dict[str, SourceRecord]:
    return {source.name: source for source in read_lineage(str(root / dataset)).sources}


def license_novels(folder: Path, license: str) -> Path:
    recipe = folder / "shelf" / "shelf.toml"
    recipe.write_text(recipe.read_text().replace('url = "novels"', f'url = "novels"\nlicense = "{license}"'))
    return recipe


def test_source_names_its_url_and_files(finished: Path) -> None:
    novels = sources(finished / "root")["novels"]
    assert novels.url == str(finished / "shelf" / "novels")
    assert (novels.files, novels.first_files[0].path) == (1, "a.jsonl")
    raw = read_manifest(str(step(finished, "root/sources/novels/download-*"))).partitions[0]
    assert novels.first_files[0].checksum == raw.xxh3


def test_license_reaches_the_lineage_without_a_new_step(finished_copy: Path) -> None:
    root, before = finished_copy / "root", tree(finished_copy / "root")
    assert sources(root)["novels"].license is None
    run = datakit.run(license_novels(finished_copy, "CC0-1.0"), root, workers=2)
    assert run.reused, "a license is no parameter of a step"
    assert {name: source.license for name, source in sources(root).items()} == {"novels": "CC0-1.0", "letters": None}
    changed = {name for name, data in tree(root).items() if before.get(name) != data}
    assert changed == {"shelf/latest.json"}


def test_url_is_shown_without_its_query_string(finished_copy: Path) -> None:
    (log,) = (finished_copy / "root").glob("shelf/runs/*/events.jsonl")
    first, *rest = log.read_text().splitlines()
    event = json.loads(first)
    event["definition"]["sources"][0]["url"] = "https://host/novels.jsonl?X-Amz-Signature=5ec2e7"
    log.write_text("\n".join([json.dumps(event), *rest]) + "\n")
    assert sources(finished_copy / "root")["novels"].url == "https://host/novels.jsonl"


def test_log_with_half_a_line_is_read(finished_copy: Path) -> None:
    (log,) = (finished_copy / "root").glob("shelf/runs/*/events.jsonl")
    log.write_text(log.read_text() + '{"event":"step_started","stage":"download"')
    assert sources(finished_copy / "root")["novels"].url is not None


def test_damaged_events_are_skipped(finished_copy: Path) -> None:
    (log,) = (finished_copy / "root").glob("shelf/runs/*/events.jsonl")
    damaged = [
        '["run_started"]',
        '{"event":"step_started","time":1.0,"stage":"download","directory":7}',
        '{"event":"run_started","time":1.0,"recipe":5,"definition":{"sources":[3,{"name":[]},{"name":"x","url":1}]}}',
        '{"event":"run_started","time":1.0,"definition":"download"}',
    ]
    log.write_text(log.read_text() + "\n".join([*damaged, ""]))
    assert set(sources(finished_copy / "root")) == {"novels", "letters"}


def test_source_of_another_download_is_not_confused(finished_copy: Path) -> None:
    """A newer run with other files of the same source does not describe the older dataset."""
    root = finished_copy / "root"
    other = finished_copy / "other" / "b.jsonl"
    other.parent.mkdir()
    other.write_text('{"text": "another novel"}\n')
    recipe = finished_copy / "second.toml"
    recipe.write_text(f'name = "second"\n[[sources]]\nname = "novels"\nurl = "{other.parent}"\n')
    datakit.run(recipe, root, workers=2, until="normalize")
    assert str(sources(root)["novels"].url).endswith("shelf/novels")
