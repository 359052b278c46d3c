"""A report is about a dataset, a step, one run (also a failed one, also in a moved root) or a training run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import datakit
from datakit.errors import PartialError
from datakit.lineage import read_lineage
from datakit.report import write_report
from datakit.report.subject import subject_of
from datakit.storage.globs import subdirectories
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root
from tests.support.small_shelf import step, write_pages


def test_run_covers_the_steps_that_its_log_names(finished: Path) -> None:
    place = step(finished, "root/shelf/runs/*")
    found = subject_of(str(place))
    assert (found.kind, found.name, len(found.steps)) == ("run", "shelf", 12)
    assert found.run is not None and (found.run.exit_code, found.run.reason) == (0, "done")
    assert subject_of(str(place / "events.jsonl")) == found


def test_run_in_a_moved_root_is_found(finished_copy: Path) -> None:
    shutil.move(finished_copy / "root", finished_copy / "elsewhere")
    found = subject_of(str(step(finished_copy, "elsewhere/shelf/runs/*")))
    assert all(one.manifest is not None and "elsewhere" in one.directory for one in found.steps)


def test_report_of_a_failed_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write_pages(tmp_path, "poisoned")
    with pytest.raises(PartialError):
        datakit.run(recipe, tmp_path / "root", workers=2, until="normalize")
    place = step(tmp_path, "root/pages/runs/*")
    page = Path(write_report(str(place), str(tmp_path))).read_text()
    assert "ended with exit code 3" in page
    assert "crash" in page.partition('id="table-failures"')[2].partition("</table>")[0]
    assert "poison" not in page.partition('id="data"')[0].replace("poisoned", "")


def test_run_that_ended_before_its_first_step_has_a_report(finished_copy: Path, tmp_path: Path) -> None:
    log = step(finished_copy, "root/shelf/runs/*") / "events.jsonl"
    log.write_text(log.read_text().splitlines()[0] + "\n")
    page = Path(write_report(str(log.parent), str(tmp_path))).read_text()
    assert "its log has no end" in page


@pytest.mark.parametrize("root", ["root-0.1", "root-0.2"])
def test_steps_of_earlier_versions_have_a_report(root: str, tmp_path: Path) -> None:
    found = Path(write_report(str(REPOSITORY / "tests" / "fixtures" / root / "data" / "shelf"), str(tmp_path)))
    assert 'id="table-retention"' in found.read_text()


def test_dataset_stands_for_its_current_run(finished: Path) -> None:
    dataset = subject_of(str(finished / "root" / "shelf"))
    cache = subject_of(str(step(finished, "root/shelf/tokenize-*")))
    (published,) = dataset.found("consolidate")  # the cache was not made from it
    assert [one for one in dataset.steps if one != published] == list(cache.steps)
    assert replace(dataset, steps=cache.steps) == cache
    assert (dataset.kind, dataset.name) == ("dataset", "shelf")


def test_dataset_in_an_object_store_has_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    with s3_root(holding=str(finished / "root")) as root:
        stored = Path(write_report(f"{root}/shelf", str(tmp_path / "stored"))).read_text()
        lineage = read_lineage(f"{root}/shelf")
        (run,) = subdirectories(f"{root}/shelf/runs")
        assert subject_of(f"{root}/shelf/runs/{run}").run is not None
    local = Path(write_report(str(finished / "root" / "shelf"), str(tmp_path / "local"))).read_text()
    for table in ("retention", "tokens", "lengths", "memory-budget"):
        start, end = f'id="table-{table}"', "</table>"
        assert stored.partition(start)[2].partition(end)[0] == local.partition(start)[2].partition(end)[0]
    assert all(one.directory.startswith("s3://") and one.finished for one in lineage.steps)
