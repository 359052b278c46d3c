"""Explains the names of metrics, lists the devices' peak FLOP/s, and writes rows of metrics to JSON lines and
optionally to TensorBoard, Trackio or Weights & Biases.

| name | value |
|---|---|
| global_step, run_progress | number of steps done, and their share of the run |
| train/loss | the training loss: cross entropy plus weighted auxiliary losses, in nats |
| train/cross_entropy_loss, train/aux_loss_weighted | the two terms of train/loss |
| train/z_loss | the z-loss, one of the auxiliary losses, before weighting |
| train/router/{routing_entropy_mean, load_balancing_loss, router_z_loss} | means over the layers |
| train/router/capacity_overflow_rate, .../layer_{i}/... | share of assignments dropped, if the model has a capacity |
| train/router/layer_{i}/{routing_entropy, load_balancing_loss, router_z_loss} | values of each layer |
| train/router/layer_{i}/routing_hist | each expert's share of the assignments; only in histograms.jsonl |
| optim/learning_rate/<group>, optim/grad_norm/<family>, optim/params_norm/<group> | see `optimizers/update.py` |
| throughput/{duration, loading_time, hook_time} | seconds of the step, the wait for data, and saves and evaluations |
| throughput/{examples_per_second, tokens_per_second, total_tokens, gflops_per_second, total_gflops, mfu} | see below |
| mixture/stage, mixture/weight/<component> | index of the current stage, and its weights; logged when they change |
| data/batch_xxh3, data/batch_rows | digest of the batch, and the number of rows it covers: those of the first process |
| log/every | the number of steps from one logged row to the next |
| data/* | the loader's metrics, counted from the last start and including prefetched batches |
| eval/* | see `evaluation/evaluate.py` |
| alarm/<group> | the norm of a group, if outside its band, as a multiple of its first value |
| alarm/loss | a loss far above the recent ones, as a multiple of their median; see `spikes.py` |
| {grad, params, updates, opt_state}/norm/<weight> | norms of single weights, for each kind listed in `log.watch` |
| {grad, ...}/histogram/<weight> | with `log.watch_histograms`: counts of absolute values; see `norms.py` |

MFU is a percentage: 100 x 3 x (forward FLOPs of a token, output matrix included, attention not halved for causality) x
tokens / (seconds x peak x devices), where peak is the device's dense bf16 rate. Recomputation and the copying of rows
to the experts are not counted. Rates are per second of `duration`. docs/metrics.md describes how padding and waiting
are counted. If a logged step ends with a checkpoint or an evaluation, its row is written twice, and the second row
supersedes the first.
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


def flatten(prefix: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Put `prefix` before each name, and replace each array with one metric per layer, layer_{i}/<name>. For an array
    [L], also add the mean over the layers as <name> (for an entropy, as <name>_mean).
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
            mean = f"{last}_mean" if last.endswith("entropy") else last
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
