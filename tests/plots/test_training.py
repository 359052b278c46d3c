"""The figure of a training run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.plots.training import plot_run
from datakit.trainer.metrics.json_lines import FILE_NAME

pytest.importorskip("matplotlib")


def test_metrics_of_an_unfinished_run_are_drawn(tmp_path: Path) -> None:
    rows = [{"global_step": step, "train/cross_entropy_loss": 9.0 - step / 10} for step in range(8)]
    rows[5] |= {"eval/loss": 8.0, "eval/macro_loss": 8.0, "eval/web/bpb": 2.5, "optim/learning_rate/adamh": 0.01}
    (tmp_path / FILE_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"global_step": 20, "cut')
    assert plot_run(str(tmp_path)) == str(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_directory_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        plot_run(str(tmp_path))


def test_kind_of_file_follows_the_name(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"global_step": 1, "train/cross_entropy_loss": 9.0}\n')
    assert Path(plot_run(str(tmp_path), str(tmp_path / "a.svg"))).read_bytes().startswith(b"<?xml")
    with pytest.raises(UsageError, match=r"a\.gif: the name must end in"):
        plot_run(str(tmp_path), str(tmp_path / "a.gif"))
