"""A run's events are numbered, rotated by size, and never half written."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import pytest

from datakit.engine.observe import event_file
from datakit.engine.observe.event_file import FILE_NAME, EventFile
from datakit.storage import urls
from tests.support.faults.mounts import on_a_disk
from tests.support.s3 import s3_root

LONG = "x" * 100


def numbers(text: bytes) -> list[int]:
    """Return the numbers of the events in a file."""
    return [json.loads(line)["number"] for line in text.splitlines()]


def write(directory: str, events: int) -> None:
    """Write the start of a run and further events."""
    log = EventFile(directory)
    for number in range(1, events + 1):
        log.write("run_started" if number == 1 else "note", {"text": LONG})
    log.publish()


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_newest_events_are_kept_and_each_file_names_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(event_file, "MOST_BYTES", 1000)  # four events
    monkeypatch.setattr(event_file, "KEPT", 2)
    if kind == "disk":
        write(str(tmp_path / "run-1"), 14)
        found = {info.path: urls.read_bytes(info.url) for info in urls.listing(str(tmp_path / "run-1"))}
    else:
        with s3_root() as root:
            write(f"{root}/run-1", 14)
            found = {info.path: urls.read_bytes(info.url) for info in urls.listing(f"{root}/run-1")}
    files = [found["events-00002.jsonl"], found["events-00003.jsonl"], found[FILE_NAME]]
    assert len(found) == 3
    assert [numbers(text)[0] for text in files] == [1, 1, 1]
    kept = [number for text in files for number in numbers(text)[1:]]
    assert kept == list(range(kept[0], 15)) and kept[0] > 2
    assert all(len(text) <= 1000 for text in files)


def test_event_longer_than_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "MOST_BYTES", 50)
    write(str(tmp_path / "run-1"), 3)
    assert numbers((tmp_path / "run-1" / FILE_NAME).read_bytes()) == [1, 3]


def test_any_fact_can_be_written(tmp_path: Path) -> None:
    facts = {"seed": 1 << 70, "text": "caf\udce9.txt", "day": date(2026, 11, 22)}
    log = EventFile(str(tmp_path / "run-1"))
    log.write("note", facts)
    written = json.loads((tmp_path / "run-1" / FILE_NAME).read_text())
    assert {name: written[name] for name in facts} == facts | {"day": "2026-11-22"}


FULL = """
import json, os, sys
from pathlib import Path
from datakit.engine.observe.event_file import EventFile
from datakit.errors import NoSpaceError
log = EventFile(sys.argv[1])
try:
    while True:
        log.write("note", {"text": "x" * 100})
except NoSpaceError:
    print(sum(bool(json.loads(line)) for line in Path(sys.argv[1], "events.jsonl").read_text().splitlines()))
"""


def test_full_disk_leaves_only_whole_events(tmp_path: Path) -> None:
    done = on_a_disk(tmp_path / "disk", '"$@"', sys.executable, "-c", FULL, f"{tmp_path}/disk/run-1", SIZE="100k")
    assert int(done.stdout) > 100, done.stderr
