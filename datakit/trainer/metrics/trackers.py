"""Names the metrics of layers, lists the devices' peak FLOP/s, and writes rows of metrics to JSON lines and optionally
to TensorBoard, Trackio or Weights & Biases. docs/metrics.md lists all metrics.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from datakit.errors import UsageError, suggestion
from datakit.trainer.metrics.json_lines import JsonLines

TRACKERS = {"tensorboard": "tensorboardX", "trackio": "trackio", "wandb": "wandb"}  # tracker -> its Python package
PEAK_FLOPS = {  # dense bf16 FLOP/s from the vendors' data sheets, keyed by prefixes of device names
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989.5e12,
    "NVIDIA H200": 989.5e12,
    "NVIDIA GH200": 989.5e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v6": 918e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Return a device's dense bf16 peak in FLOP/s, or None if the peak is unknown, as it is for CPUs."""
    known = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
    return PEAK_FLOPS[max(known, key=len)] if known else None


# If the name of an array ends like this, the name of its mean over the layers ends with _mean, as in other trainers.
MARKED_MEANS = ("entropy", "capacity_overflow_rate")


def flatten(prefix: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Put `prefix` before each name, and replace each array with one metric per layer, layer_{i}/<name>. For an array
    [L], also add the mean over the layers as <name> (or <name>_mean, see `MARKED_MEANS`).
    """
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        array = np.asarray(value)
        folder, _, last = name.rpartition("/")
        place = f"{prefix}/{folder}" if folder else prefix
        if array.ndim == 0:
            flat[f"{place}/{last}"] = array.item()
            continue
        for layer, entry in enumerate(array.tolist()):
            flat[f"{place}/layer_{layer}/{last}"] = entry
        if array.ndim == 1:
            mean = f"{last}_mean" if last.endswith(MARKED_MEANS) else last
            flat[f"{place}/{mean}"] = float(array.mean())
    return flat


class Tracker(Protocol):
    """Stores rows of metrics."""

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Store a row."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Writes TensorBoard event files in the run's directory."""

    def __init__(self, folder: str) -> None:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports] - optional

        self._writer = SummaryWriter(str(Path(folder) / "tensorboard"))

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Hosted:
    """Sends rows to Trackio or Weights & Biases, which have the same interface. If a run is resumed, its new rows are
    added to its earlier ones. Both packages print to standard output, which is reserved for results, so their output
    is redirected to standard error.
    """

    def __init__(self, package: Any, project: str, name: str, config: dict[str, Any]) -> None:
        self._package = package
        more = {"id": name} if package.__name__ == "wandb" else {}  # trackio identifies a run by its name
        with redirect_stdout(sys.stderr):
            self._package.init(project=project, name=name, config=config, resume="allow", **more)

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        self._package.log({name: value for name, value in row.items() if isinstance(value, (int, float))}, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._package.finish()


class Trackers:
    """Combines all trackers of a run into one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Store a row in each tracker."""
        for tracker in self._trackers:
            tracker.log(step, row)

    def close(self) -> None:
        """Flush and close."""
        for tracker in self._trackers:
            tracker.close()


def check_trackers(names: Iterable[str]) -> None:
    """Raise UsageError for a tracker that is unknown or whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"log.trackers: there is no tracker {name!r}; {suggestion(name, TRACKERS)}")
        if importlib.util.find_spec(TRACKERS[name]) is None:
            raise UsageError(f"log.trackers: the package for {name} is not installed; run pip install {TRACKERS[name]}")


def open_trackers(
    folder: str,
    start: int,
    names: Iterable[str],
    project: str,
    run: str,
    config: dict[str, Any],
    say: Callable[[str], None],
) -> Trackers:
    """Open the JSON Lines files in `folder` and the named trackers, which must have passed `check_trackers`."""
    trackers: list[Tracker] = [JsonLines(folder, start, say)]
    for name in names:
        if name == "tensorboard":
            trackers.append(TensorBoard(folder))
        else:
            trackers.append(Hosted(importlib.import_module(TRACKERS[name]), project, run, config))
    return Trackers(trackers)
