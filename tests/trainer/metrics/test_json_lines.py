"""Rows become JSON lines whatever they hold, and damaged lines do not stop a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.errors import NoSpaceError, UsageError
from datakit.trainer.metrics.json_lines import FILE_NAME, HISTOGRAMS, JsonLines, last_row, read_metrics
from datakit.trainer.metrics.trackers import flatten
from tests.support.trainer.trainer_runs import silent


def steps(folder: Path, name: str = FILE_NAME) -> list[int]:
    return [row["global_step"] for row in read_metrics(str(folder), name)]


def reopen(folder: Path, start: int, lines: list[str], row: Any = None) -> None:
    """Open the files as a run does that resumes at `start`; log one row."""
    opened = JsonLines(str(folder), start, lines.append)
    opened.log(start + 1, row or {"train/loss": 1.0})
    opened.close()


def test_rows_are_json_whatever_they_hold(tmp_path: Path) -> None:
    opened = JsonLines(str(tmp_path), 0, silent)
    flat = flatten("train", {"router/load": np.eye(2), "router/routing_entropy": np.ones(2), "z_loss": 0.5})
    opened.log(1, flat | {"train/loss": float("nan")})
    opened.log(2, {"train/loss": 1.0})
    opened.log(1, {"train/loss": 2.0})
    opened.close()
    assert read_metrics(str(tmp_path)) == [
        {"global_step": 1, "train/loss": 2.0},
        {"global_step": 2, "train/loss": 1.0},
    ]
    first = json.loads((tmp_path / FILE_NAME).read_text().splitlines()[0])
    assert first["train/loss"] is None
    assert first["train/router/routing_entropy_mean"] == 1.0
    assert not any(isinstance(value, list) for value in first.values())
    (histograms,) = read_metrics(str(tmp_path), HISTOGRAMS)
    assert histograms["train/router/layer_1/load"] == [0.0, 1.0]
    with pytest.raises(UsageError, match=r"is .* the directory of a training run"):
        read_metrics(str(tmp_path / "elsewhere"))


def test_a_torn_last_row_is_removed(tmp_path: Path, lines: list[str]) -> None:
    whole, torn = '{"global_step": 1, "train/loss": 2.0}\n', '{"global_step": 2, "train/lo'
    (tmp_path / FILE_NAME).write_text(whole + torn)
    assert steps(tmp_path) == [1]
    reopen(tmp_path, 1, lines)
    assert [row["train/loss"] for row in read_metrics(str(tmp_path))] == [2.0, 1.0]
    assert not lines


@pytest.mark.parametrize("damage", [b"\x00" * 20, b"\xff\xfe", b'{"global_step": 2, "tr', b"[]", b"{}"], ids=repr)
def test_damaged_lines_are_moved_aside(damage: bytes, tmp_path: Path, lines: list[str]) -> None:
    rows = [b'{"global_step": %d}\n' % step for step in (1, 2, 3, 4)]
    (tmp_path / FILE_NAME).write_bytes(rows[0] + damage + b"\n" + b"".join(rows[1:]))
    assert last_row(str(tmp_path), 4) == {"global_step": 4}
    reopen(tmp_path, 3, lines)
    assert steps(tmp_path) == [1, 2, 3, 4]
    (warning,) = lines
    assert "unreadable lines: 1, the first is line 2; moved to metrics.set-aside.jsonl" in warning
    assert (tmp_path / "metrics.set-aside.jsonl").read_bytes() == damage + b"\n" + rows[3]


def test_rows_after_the_start_are_moved_aside(tmp_path: Path, lines: list[str]) -> None:
    for start in (0, 1, 2):
        reopen(tmp_path, start, lines, {"train/loss": 1.0, "train/hist": [1]})
    reopen(tmp_path, 1, lines, {"train/loss": 9.0, "train/hist": [9]})
    assert steps(tmp_path) == steps(tmp_path, HISTOGRAMS) == [1, 2]
    for name in ("metrics", "histograms"):
        assert len((tmp_path / f"{name}.set-aside.jsonl").read_text().splitlines()) == 2
    assert not lines


def test_a_full_disk_is_named_and_every_file_closed(tmp_path: Path) -> None:
    tracker = JsonLines(str(tmp_path), 0, silent)
    (tmp_path / HISTOGRAMS).symlink_to("/dev/full")
    for attempt in (lambda: tracker.log(1, {"a": 1.0, "h": [1, 2]}), tracker.close):
        with pytest.raises(NoSpaceError, match=f"no space left to write {tmp_path}; free some space"):
            attempt()
    assert all(file.closed for file in tracker._files.values())
