"""Reports and lists show nothing to which a link leads out of the root."""

from __future__ import annotations

import os
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


def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each file that is read and each directory that is listed from now on is added."""
    found, scan = reads(monkeypatch), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": found.append(os.fspath(path)) or scan(path))
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


@pytest.mark.parametrize("name", ["sources/novels/normalize-*", "sources/novels", "shelf/dedup-*/manifest.json"])
@pytest.mark.parametrize("of", ["dataset", "run"])
def test_upstream_steps_outside_of_the_root_are_never_read(
    finished_copy: Path, name: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, linked = Server(ServedRoot(str(finished_copy / "root")), Access()), step(finished_copy, f"root/{name}")
    moved_out(linked, finished_copy)
    run, seen = step(finished_copy, "root/shelf/runs/*").name, touched(monkeypatch)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"dataset": "shelf"} | ({"kind": "runs", "run": run} if of == "run" else {}))
    assert seen and not [place for place in seen if str(linked) in place]


def test_recorded_step_outside_of_the_root_is_never_read(finished_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may name any directory of its dataset, also one whose name is not that of a step."""
    root = finished_copy / "root"
    server, cache = Server(ServedRoot(str(root)), Access()), step(finished_copy, "root/shelf/tokenize-*")
    shutil.copytree(cache, finished_copy / "outside")
    (root / "shelf" / "planted").symlink_to(finished_copy / "outside")
    record = root / "shelf" / "latest.json"
    record.write_text(record.read_text().replace(cache.name, "planted"))
    seen = touched(monkeypatch)
    page = server.pages.page({}, "shelf")
    assert any("must not be read" in text for text in page.problems)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"dataset": "shelf"})
    assert seen and not [place for place in seen if "planted" in place]


def test_linked_dataset_and_source_are_not_searched(finished_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, outside = finished_copy / "root", finished_copy / "outside"
    shutil.copytree(root / "shelf", outside)
    (root / "planted").symlink_to(outside)
    (root / "sources" / "planted").symlink_to(outside)
    (root / "shelf" / "sources").symlink_to(root.parent)
    server, seen = Server(ServedRoot(str(root)), Access()), touched(monkeypatch)
    assert server.pages.page({}, "shelf").steps and server.report({"dataset": "shelf"})
    assert seen and not [place for place in seen if "planted" in place or "shelf/sources" in place]


@pytest.mark.parametrize("name", ["ledger", "../runs"])
def test_report_about_a_training_run_follows_no_link_out_of_the_root(
    finished_copy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = finished_copy / "root" / "other" / TRAINING
    place.mkdir(parents=True)
    (place / "metrics.jsonl").write_text('{"global_step": 7}\n')
    (finished_copy / "outside").mkdir()
    planted = (place / name).resolve()
    planted.symlink_to(finished_copy / "outside")
    server, seen = Server(ServedRoot(str(finished_copy / "root")), Access()), touched(monkeypatch)
    with pytest.raises(RootError, match="outside of the root"):
        server.report({"kind": "trainings", "dataset": "other", "run": TRAINING})
    assert not [url for url in seen if url.startswith((str(planted), str(finished_copy / "outside")))]
