"""Reports and lists show nothing to which a link leads out of the root."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.errors import NotFoundError, RootError
from datakit.serve.access import Access
from datakit.serve.app import Server
from datakit.serve.root import ServedRoot
from datakit.storage import urls
from tests.support.small_shelf import step

TRAINING = "train-0123456789ab"


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the URL of each file that is read from now on is added."""
    found, fetch = list[str](), urls.read_range
    monkeypatch.setattr(urls, "read_range", lambda url, *rest: found.append(url) or fetch(url, *rest))
    return found


def moved_out(path: Path, outside: Path) -> None:
    """Move a file or a directory out of the root, and leave a link to it."""
    path.rename(outside / path.name)
    path.symlink_to(outside / path.name)


@pytest.mark.parametrize("name", ["latest.json", "runs", "tokenize-*", "tokenize-*/manifest.json"])
def test_report_about_a_dataset_follows_no_link_out_of_the_root(finished_copy: Path, name: str) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    moved_out(step(finished_copy, f"root/shelf/{name}"), finished_copy)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"dataset": "shelf"})


@pytest.mark.parametrize("name", ["runs/stolen", "runs/stolen/events.jsonl"])
def test_report_about_a_dataset_reads_no_log_outside_of_the_root(finished_copy: Path, name: str) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    shutil.copytree(step(finished_copy, "root/shelf/runs/*"), finished_copy / "root" / "shelf" / "runs" / "stolen")
    moved_out(finished_copy / "root" / "shelf" / name, finished_copy)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"dataset": "shelf"})


@pytest.mark.parametrize("name", ["runs/stolen", TRAINING])
def test_linked_runs_are_hidden_and_not_read(finished_copy: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, place = finished_copy / "outside", finished_copy / "root" / "shelf" / name
    shutil.copytree(step(finished_copy, "root/shelf/runs/*"), outside)
    (outside / "metrics.jsonl").write_text('{"global_step": 7}\n')
    place.symlink_to(outside)
    server, read = Server(ServedRoot(str(finished_copy / "root")), Access()), reads(monkeypatch)
    for dataset in ("", "shelf"):
        page = server.pages.page({}, dataset)
        assert len(page.runs) == 1 and not page.trainings
        assert any(text.startswith("1 of the directories") for text in page.problems)
    assert read and not [url for url in read if name in url or "outside" in url]
    with pytest.raises(NotFoundError):
        server.page({"kind": "runs" if "/" in name else "trainings", "dataset": "shelf", "run": place.name}, {})


def test_report_about_a_run_follows_no_link_out_of_the_root(finished_copy: Path) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    run = step(finished_copy, "root/shelf/runs/*")
    moved_out(run / "events.jsonl", finished_copy)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"kind": "runs", "dataset": "shelf", "run": run.name})


@pytest.mark.parametrize("name", ["tokenize-*", "tokenize-*/manifest.json"])
def test_steps_outside_of_the_root_are_not_listed(
    finished_copy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    before = server.pages.page({}, "shelf").steps
    moved_out(step(finished_copy, f"root/shelf/{name}"), finished_copy)
    read = reads(monkeypatch)
    after = server.pages.page({}, "shelf")
    assert not [url for url in read if "tokenize-" in url]
    assert len(after.steps) == len(before) - 1
    assert any(text.startswith("1 of the directories") for text in after.problems)
