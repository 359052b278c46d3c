"""The newest metrics and a bounded curve are read from `metrics.jsonl` while it grows, however it is cut or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.serve import training_state
from datakit.serve.training_state import LOSS, MOST_METRICS, POINTS, TrainingState
from datakit.storage import urls


def write(folder: Path, steps: range, mode: str = "a") -> None:
    with (folder / "metrics.jsonl").open(mode) as file:
        file.writelines(json.dumps({"global_step": step, LOSS: 5.0 - step / 10_000}) + "\n" for step in steps)


def test_rows_are_read_as_they_are_written(tmp_path: Path) -> None:
    state = TrainingState(str(tmp_path))
    assert not state.read()
    write(tmp_path, range(3))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 3, "train')
    assert state.read() and not state.read()
    assert state.step == 2 and state.row == {LOSS: 4.9998} and len(state.curve) == 3
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('/cross_entropy_loss": 1.5}\n')
    assert state.read() and (state.step, state.curve[-1]) == (3, (3, 1.5))


def test_resumed_run_is_read_again(tmp_path: Path) -> None:
    state = TrainingState(str(tmp_path))
    write(tmp_path, range(10))
    state.read()
    write(tmp_path, range(5), "w")
    assert state.read() and state.step == 4 and [step for step, _ in state.curve] == [0, 1, 2, 3, 4]


def test_resumed_run_that_has_outgrown_the_old_file_is_read_again(tmp_path: Path) -> None:
    state = TrainingState(str(tmp_path))
    write(tmp_path, range(10))
    state.read()
    write(tmp_path, range(3, 40), "w")
    assert state.read() and state.step == 39 and [step for step, _ in state.curve] == list(range(3, 40))
    assert not state.unreadable


def test_file_whose_steps_do_not_rise_is_read_again(tmp_path: Path) -> None:
    state = TrainingState(str(tmp_path))
    write(tmp_path, range(10))
    state.read()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[0] = lines[0].replace("5.0", "4.0")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))  # the last line is where it was
    write(tmp_path, range(5, 8))
    assert state.read() and state.step == 7
    assert state.curve[0] == (0, 4.0) and [step for step, _ in state.curve] == list(range(8))
    write(tmp_path, range(8, 9))
    assert state.read() and [step for step, _ in state.curve] == list(range(9))


def test_unchanged_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = TrainingState(str(tmp_path))
    write(tmp_path, range(10))
    assert state.read()
    monkeypatch.setattr(urls, "read_range", None)
    assert not state.read() and state.step == 9


def test_curve_is_bounded_and_covers_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "PIECE_BYTES", 1000)
    state = TrainingState(str(tmp_path))
    write(tmp_path, range(20_000))
    assert state.read() and state.step == 19_999
    assert POINTS <= len(state.curve) < 2 * POINTS
    assert state.curve[0][0] < 100 and state.curve[-1][0] > 19_900


def test_lines_that_are_no_rows_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "PIECE_BYTES", 1000)
    monkeypatch.setattr(training_state, "LONGEST_LINE", 5000)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b"[1]\n7\n{torn\n" + b'{"global_step": 1, "text": "' + b"x" * 3000 + b'"}\n' + b"[" * 30_000 + b"\n"
    )
    write(tmp_path, range(2, 4))
    many = {"global_step": 4, **{f"metric {number}": 1.0 for number in range(MOST_METRICS + 20)}}
    with path.open("a") as file:
        file.write(json.dumps(many) + "\n")
    state = TrainingState(str(tmp_path))
    assert state.read() and state.step == 4 and state.unreadable >= 4
    assert [step for step, _ in state.curve] == [2, 3] and len(state.row) == MOST_METRICS
