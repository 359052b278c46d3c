"""A directory stands for the right steps, in the right order; nothing outside of it is checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.errors import NotFoundError
from datakit.storage import urls
from datakit.storage.manifest import read_manifest
from datakit.validate.targets import targets_of
from datakit.validate.validation import validate
from tests.support.small_shelf import step


def test_steps_follow_their_inputs_and_appear_once(finished: Path) -> None:
    steps = targets_of(str(finished / "root")).steps
    assert len(steps) == len(set(steps)) == 12
    for number, directory in enumerate(steps):
        above = {urls.parent(urls.join(directory, entry.path)) for entry in read_manifest(directory).inputs}
        assert above <= set(steps[:number])


def test_unfinished_step_of_a_root_is_listed_without_a_finding(finished_copy: Path) -> None:
    (finished_copy / "root/shelf/consolidate-000000000000/ledger").mkdir(parents=True)
    report = validate(str(finished_copy / "root"))
    assert [urls.name(place) for place in report.targets.unfinished] == ["consolidate-000000000000"]
    assert (report.findings, len(report.steps)) == ([], 12)


def test_dataset_that_names_an_unfinished_step_has_a_finding(finished_copy: Path) -> None:
    shelf = finished_copy / "root/shelf"
    (step(shelf, "tokenize-*") / "manifest.json").unlink()
    for place in (shelf, finished_copy / "root"):
        (found,) = validate(str(place)).findings
        assert (Path(found.url).name, "is unfinished or missing" in found.difference) == ("latest.json", True)


def test_missing_input_is_a_finding_only_in_a_dataset(finished_copy: Path) -> None:
    cache = step(finished_copy / "root", "shelf/tokenize-*")
    shutil.rmtree(step(finished_copy / "root", "sources/novels/signatures-*"))
    shutil.rmtree(above := step(finished_copy / "root", "shelf/select-*"))
    report = validate(str(cache))
    skipped = [result.check for result in report.steps[0].results if result.skipped]
    assert (report.findings, skipped) == ([], ["inputs", "alignment", "encoding"])
    found = {Path(one.url).parent.name: one.difference for one in validate(str(finished_copy / "root/shelf")).findings}
    assert "is missing" in found[above.name]


def test_damaged_manifest_is_found_once_per_check(finished_copy: Path) -> None:
    place = step(finished_copy / "root", "sources/novels/normalize-*") / "manifest.json"
    place.write_bytes(place.read_bytes()[:-5])
    found = [one for one in validate(str(finished_copy / "root")).findings if one.url == str(place)]
    assert [one.check for one in found] == ["manifest", "inputs"]


def test_directory_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a dataset, root or training run"):
        targets_of(str(tmp_path))


def test_root_without_a_finished_step_is_refused(tmp_path: Path) -> None:
    for name in ("sources/novels/download-000000000000", "shelf/consolidate-000000000000"):
        (tmp_path / name / "ledger").mkdir(parents=True)
    with pytest.raises(NotFoundError, match=r"a root without a finished step.*datakit status"):
        targets_of(str(tmp_path))


def test_steps_outside_of_the_root_are_not_checked(finished_copy: Path, tmp_path: Path) -> None:
    sources = finished_copy / "root/sources"
    shutil.move(sources, tmp_path / "elsewhere")
    (finished_copy / "root/sources").symlink_to(tmp_path / "elsewhere")
    assert validate(str(finished_copy / "root")).findings == []
