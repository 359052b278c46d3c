"""A report is about a dataset, a step, one run (also a failed one, also in a moved root) or a training run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import datakit
from datakit.errors import PartialError
from datakit.report import write_report
from datakit.report.subject import run_facts, subject_of
from tests.support.small_shelf import step, write_pages


def test_run_covers_the_steps_that_its_log_names(finished: Path) -> None:
    place = step(finished, "root/shelf/runs/*")
    found = subject_of(str(place))
    assert (found.kind, found.name, len(found.steps)) == ("run", "shelf", 10)
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


def test_dataset_stands_for_its_current_run(finished: Path) -> None:
    dataset = subject_of(str(finished / "root" / "shelf"))
    assert dataset == subject_of(str(step(finished, "root/shelf/tokenize-*")))
    assert (dataset.kind, dataset.name) == ("dataset", "shelf")


def test_facts_of_a_run_come_from_its_log(finished: Path) -> None:
    name = os.path.basename(step(finished, "root/shelf/runs/*"))
    facts = run_facts(str(finished / "root" / "shelf"), name)
    assert facts is not None and facts.run == name
    assert run_facts(str(finished / "root" / "shelf"), "no-such-run") is None
