"""Lists read again only what has changed, however many runs and steps a root holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from datakit.serve import root as room
from datakit.serve.access import Access
from datakit.serve.app import Server
from datakit.serve.root import ServedRoot
from datakit.storage import urls
from tests.support.small_shelf import step

EVENTS = ({"event": "run_started", "time": 1000.0}, {"event": "run_ended", "time": 1060.0, "exit_code": 0})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at every request."""
    monkeypatch.setattr(room, "LISTING_SECONDS", 0.0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URL of each file that is read."""
    found, fetch = list[str](), urls.read_range
    monkeypatch.setattr(urls, "read_range", lambda url, *rest: found.append(url) or fetch(url, *rest))
    return found


def write_run(folder: Path, number: int) -> Path:
    log = folder / f"data{number % 20}" / "runs" / f"20260101T{number:06d}000Z-1-abcdef" / "events.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    return log


def test_finished_runs_are_read_once(tmp_path: Path, read: list[str]) -> None:
    logs = [write_run(tmp_path, number) for number in range(1000)]
    server = Server(ServedRoot(str(tmp_path)), Access())
    pages = ("", *(f"data{number}" for number in range(20)))
    first = [server.pages.page({}, dataset) for dataset in pages]
    assert len(set(read)) == 1000 and len(first[0].runs) == 100 and len(first[1].runs) == 50
    read.clear()
    assert [server.pages.page({}, dataset) for dataset in pages] == first and read == []
    with logs[-1].open("a") as file:
        file.write(json.dumps({"event": "note", "time": 1090.0}) + "\n")
    assert server.pages.page({}).runs[0].seconds == 90.0 and set(read) == {str(logs[-1])}


def test_finished_training_runs_are_read_once(tmp_path: Path, read: list[str]) -> None:
    for number in range(30):
        place = tmp_path / "books" / f"train-{number:012x}"
        place.mkdir(parents=True)
        (place / "metrics.jsonl").write_text('{"global_step": 7}\n')
        (place / "manifest.json").write_text("{}")
    server = Server(ServedRoot(str(tmp_path)), Access())
    first = server.pages.page({}).trainings
    assert {line.step for line in first} == {7} and len(read) == 30
    read.clear()
    assert server.pages.page({}).trainings == first and read == []


def test_manifests_are_read_again_when_one_changes(finished_copy: Path, read: list[str]) -> None:
    server = Server(ServedRoot(str(finished_copy / "root")), Access())
    first = server.pages.page({}, "shelf")
    assert first.steps and read
    read.clear()
    assert server.pages.page({}, "shelf") == first and read == []
    os.utime(step(finished_copy, "root/shelf/latest.json"))
    assert server.pages.page({}, "shelf") == first and read
    step(finished_copy, "root/shelf/tokenize-*/manifest.json").unlink()
    states = {one.stage: one.state for one in server.pages.page({}, "shelf").steps}
    assert states["tokenize"] == "unfinished"
