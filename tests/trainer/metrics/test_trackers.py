"""Trackers other than JSON lines are optional."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.trainer.metrics import trackers


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    opened = trackers.open_trackers(str(tmp_path), 0, ("tensorboard",), "project", "run", {}, print)
    opened.log(1, {"train/loss": 2.0, "throughput/device_kind": "cpu"})
    opened.close()
    assert list((tmp_path / "tensorboard").iterdir())


def test_missing_trackers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", "a_package_that_nobody_has")
    with pytest.raises(UsageError, match="for wandb is not installed; run pip install a_package_that_nobody_has"):
        trackers.check_trackers(["wandb"])


def test_peak_flops_follow_the_device_name() -> None:
    assert trackers.peak_flops("NVIDIA H100 80GB HBM3") == 989.5e12
    assert trackers.peak_flops("NVIDIA H100 PCIe") == 756e12
    assert trackers.peak_flops("TPU v5 lite") == 197e12
    assert trackers.peak_flops("cpu") is None
