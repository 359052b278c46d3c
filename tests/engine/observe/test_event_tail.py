"""The events of a log are read once and in order, across rotations, damage and lines of any length."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from datakit.engine.observe import event_file, event_tail
from datakit.engine.observe.event_file import EventFile
from datakit.engine.observe.event_tail import EventTail
from datakit.errors import UnreadableError
from tests.support.s3 import s3_root


def numbers(tail: EventTail) -> list[int]:
    return [event["number"] for event in tail.read()]


def write(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def line(number: int, **more: Any) -> bytes:
    return json.dumps({"time": 1.0, "event": "note", "number": number, **more}).encode() + b"\n"


def test_rotated_files_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_file, "MOST_BYTES", 2_000)
    log, followed, seen = EventFile(str(tmp_path)), EventTail(f"{tmp_path}/events.jsonl", rotated=True), list[int]()
    for number in range(1, 101):
        log.write("note", {"text": "x" * (number % 17) * 10})
        if number % 13 == 0:
            seen += numbers(followed)
    seen += numbers(followed)
    assert len([*tmp_path.iterdir()]) > 3, "the file was rotated several times"
    late = EventTail(followed.url, rotated=True)
    assert seen == list(range(1, 101))
    kept = numbers(late)
    assert kept[0] == 1 and kept[1:] == list(range(kept[1], 101))


def test_log_in_an_object_store_is_followed() -> None:
    with s3_root() as root:
        log = EventFile(f"{root}/runs/a")
        tail = EventTail(log.url, rotated=True)
        assert numbers(tail) == []
        log.write("note", {"text": "a"})
        log.publish()
        assert numbers(tail) == [1]
        log.write("note", {"text": "b"})
        assert numbers(tail) == [], "not published yet"
        log.publish()
        assert numbers(tail) == [2] and numbers(tail) == []


def test_long_line_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_tail, "LONGEST_LINE", 5_000)
    monkeypatch.setattr(event_tail, "PIECE_BYTES", 1_000)
    path = tmp_path / "events.jsonl"
    write(path, line(1), line(2, text="x" * 4_000), line(3, text="x" * 20_000), line(4))
    tail = EventTail(str(path))
    assert numbers(tail) == [1, 2, 4] and tail.unreadable == 1
    write(path, line(5, text="x" * 20_000)[:-1])
    assert numbers(tail) == []
    write(path, b"\n", line(6))
    assert numbers(tail) == [6]


def test_huge_file_is_read_in_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_tail, "MOST_BYTES_AT_ONCE", 3_000)
    path = tmp_path / "events.jsonl"
    write(path, *(line(number, text="x" * 200) for number in range(1, 31)))
    tail, seen, calls = EventTail(str(path)), list[int](), 0
    while len(seen) < 30:
        seen, calls = seen + numbers(tail), calls + 1
    assert seen == list(range(1, 31)) and calls > 2 and not tail.behind


def test_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(UnreadableError, match="named pipe"):
        numbers(EventTail(str(tmp_path / "events.jsonl")))
