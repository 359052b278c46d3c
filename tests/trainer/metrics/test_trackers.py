"""Rows become JSON lines whatever they hold, and other trackers are optional."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from datakit.errors import UsageError
from datakit.trainer.metrics import trackers


def test_rows_are_json_whatever_they_hold(tmp_path: Path) -> None:
    opened = trackers.open_trackers(str(tmp_path), 0, (), "project", "run", {})
    flat = trackers.flatten("train", {"router/load": np.eye(2), "router/routing_entropy": np.ones(2), "z_loss": 0.5})
    opened.log(1, flat | {"train/loss": float("nan")})
    opened.log(2, {"train/loss": 1.0})
    opened.log(1, {"train/loss": 2.0})
    opened.close()
    assert trackers.read_metrics(str(tmp_path)) == [
        {"global_step": 1, "train/loss": 2.0},
        {"global_step": 2, "train/loss": 1.0},
    ]
    first = json.loads((tmp_path / trackers.FILE_NAME).read_text().splitlines()[0])
    assert first["train/loss"] is None
    assert first["train/router/layer_1/load"] == [0.0, 1.0]
    assert first["train/router/routing_entropy_mean"] == 1.0
    with pytest.raises(UsageError, match=r"is .* the directory of a training run"):
        trackers.read_metrics(str(tmp_path / "elsewhere"))


def test_a_torn_last_row_is_removed(tmp_path: Path) -> None:
    whole, torn = '{"global_step": 1, "train/loss": 2.0}\n', '{"global_step": 2, "train/lo'
    (tmp_path / trackers.FILE_NAME).write_text(whole + torn)
    assert [row["global_step"] for row in trackers.read_metrics(str(tmp_path))] == [1]
    opened = trackers.open_trackers(str(tmp_path), 1, (), "project", "run", {})
    opened.log(2, {"train/loss": 1.0})
    opened.close()
    assert [row["train/loss"] for row in trackers.read_metrics(str(tmp_path))] == [2.0, 1.0]


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    opened = trackers.open_trackers(str(tmp_path), 0, ("tensorboard",), "project", "run", {})
    opened.log(1, {"train/loss": 2.0, "throughput/device_kind": "cpu"})
    opened.close()
    assert list((tmp_path / "tensorboard").iterdir())


def test_missing_trackers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", "a_package_that_nobody_has")
    with pytest.raises(UsageError, match="wandb is not installed; run pip install a_package_that_nobody_has"):
        trackers.check_trackers(["wandb"])


def test_peak_flops_follow_the_device_name() -> None:
    assert trackers.peak_flops("NVIDIA H100 80GB HBM3") == 989.5e12
    assert trackers.peak_flops("NVIDIA H100 PCIe") == 756e12
    assert trackers.peak_flops("TPU v5 lite") == 197e12
    assert trackers.peak_flops("cpu") is None
