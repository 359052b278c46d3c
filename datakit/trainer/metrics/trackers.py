"""Explains the names of metrics, holds the devices' peak FLOP/s, writes rows of metrics as JSON lines and optionally to
TensorBoard, Trackio or Weights & Biases, and reads the JSON lines.

| name | value |
|---|---|
| global_step, run_progress | number of steps done, and their share of the run |
| train/loss | the training loss: cross entropy plus weighted auxiliary losses, in nats |
| train/cross_entropy_loss, train/aux_loss_weighted | the two terms of train/loss |
| train/z_loss | the z-loss, one of the auxiliary losses, before weighting |
| train/router/{routing_entropy_mean, load_balancing_loss, router_z_loss} | means over the layers |
| train/router/layer_{i}/{routing_entropy, load_balancing_loss, router_z_loss, routing_hist} | values of each layer |
| optim/learning_rate/<group>, optim/grad_norm/<family>, optim/params_norm/<group> | see `optimizer.py` |
| throughput/{duration, loading_time, hook_time} | seconds of the step, the wait for data, and saves and evaluations |
| throughput/{examples_per_second, tokens_per_second, total_tokens, gflops_per_second, total_gflops, mfu} | see below |
| mixture/stage, mixture/weight/<component> | number of the current stage and its weights; logged when they change |
| data/* | the loader's metrics, counted from the last start and including prefetched batches |
| eval/* | see `evaluate.py` |
| alarm/<group> | the norm of a group, if outside its band, as a multiple of its first value |
| {grad, params, updates, opt_state}/norm/<weight> | norms of single weights, for each kind listed in `log.watch` |

MFU is a percentage: 100 x 3 x (forward FLOPs of a token, output matrix included, attention not halved for causality) x
tokens / (seconds x peak x devices), where peak is the device's dense bf16 rate. Recomputation and the copying of rows
to the experts are not counted. Rates are per second of `duration`. docs/trainer.md says how padding and waiting are
counted. If a logged step ends with a checkpoint or an evaluation, its row is written twice, and the last row counts.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from datakit.errors import UsageError, suggestion

FILE_NAME = "metrics.jsonl"
SET_ASIDE = "metrics.set-aside.jsonl"  # the rows that a later start moved here because it resumed at an earlier step
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
    """Return the dense bf16 peak of a device in FLOP/s, or None if it is unknown, as for CPUs."""
    known = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
    return PEAK_FLOPS[max(known, key=len)] if known else None


def flatten(prefix: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Split arrays by layer into layer_{i}/<name>; for arrays [L], add the mean as <name> (entropies: <name>_mean)."""
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


class JsonLines:
    """The tracker that every run has. It writes NaN and infinity as null. A killed process can leave an incomplete last
    line, which the next start removes. Rows after step `start`, at which the run resumes, are moved to `SET_ASIDE`.
    """

    def __init__(self, folder: str, start: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / FILE_NAME
        self._file = path.open("a", encoding="utf-8")
        lines = whole_lines(path)
        kept = list(takewhile(lambda line: json.loads(line)["global_step"] <= start, lines))
        if len(kept) < len(lines):
            with (Path(folder) / SET_ASIDE).open("a", encoding="utf-8") as aside:
                aside.writelines(lines[len(kept) :])
        os.truncate(path, len("".join(kept).encode()))

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"global_step": step, **_finite(row)}, sort_keys=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


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
    """Sends rows to Trackio or Weights & Biases, which have the same interface and continue a resumed run as the same
    run. Both print to standard output, which is reserved for results, so their output is redirected to standard error.
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
            raise UsageError(f"log.trackers: {name} is not installed; run pip install {TRACKERS[name]}")


def open_trackers(
    folder: str, start: int, names: Iterable[str], project: str, run: str, config: dict[str, Any]
) -> Trackers:
    """Open the file of JSON lines in `folder` and the named trackers, which must have passed `check_trackers`."""
    trackers: list[Tracker] = [JsonLines(folder, start)]
    for name in names:
        if name == "tensorboard":
            trackers.append(TensorBoard(folder))
        else:
            trackers.append(Hosted(importlib.import_module(TRACKERS[name]), project, run, config))
    return Trackers(trackers)


def has_rows(folder: str) -> bool:
    """Return True if the folder holds rows from an earlier start."""
    path = Path(folder) / FILE_NAME
    return path.exists() and path.stat().st_size > 0


def last_row(folder: str, step: int) -> dict[str, Any]:
    """Return the last row if it is the row of `step`, otherwise an empty dict."""
    rows = read_metrics(folder)
    return rows[-1] if rows and rows[-1]["global_step"] == step else {}


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that end with a newline."""
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def read_metrics(folder: str) -> list[dict[str, Any]]:
    """Return a run's rows in step order, with only the last row of each step. Raises UsageError if there is no file."""
    path = Path(folder) / FILE_NAME
    if not path.exists():
        raise UsageError(f"{path} does not exist; is {folder} the directory of a training run?")
    rows: dict[int, dict[str, Any]] = {}
    for line in whole_lines(path):
        row = json.loads(line)
        rows[row["global_step"]] = row
    return [rows[step] for step in sorted(rows)]
