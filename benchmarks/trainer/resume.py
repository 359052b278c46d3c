"""Compare the speed of a resumed run with that before it was killed: SIGKILL and start again, several times.

    python -m benchmarks.trainer.resume                    # three kills, 40 steps a start
    python -m benchmarks.trainer.resume --kills 5 --steps 100 --json resume.json

The model is that of benchmarks/trainer/train_text.toml on random tokens, through the real loader, loop and checkpoints.
Each start is a process of its own, measured by the rows it wrote to metrics.jsonl. Its first steps, which compile and
fill the queues, are left out of the median and reported as "to the first step". The result is the ratio of each start's
median to the first start's; p10 and p90 show how much a busy machine moves it.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datakit.loader import ArraySource, Component, Loader, Mixture
from datakit.trainer.checkpoints.candidates import MARKER
from datakit.trainer.metrics.json_lines import FILE_NAME
from datakit.trainer.run_file import parse_run
from datakit.trainer.train import train

RUN = Path(__file__).with_name("train_text.toml")
VOCABULARY, DOCUMENT, DOCUMENTS = 8192, 1000, 2000
WARM = 3  # steps after a start that are left out of the median


def run_to_the_end(folder: Path, steps: int, save_every: int) -> None:
    """Run in this process from the newest checkpoint to the end."""
    document = tomllib.loads(RUN.read_text(encoding="utf-8"))
    data = document.pop("data")
    document |= {"steps": steps, "checkpoint": {"keep_every": save_every}, "evaluation": {}}
    document |= {"compilation_cache": str(folder / "compiled")}
    document["model"] |= {"vocabulary": VOCABULARY}
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, DOCUMENT * DOCUMENTS, dtype=np.uint16)
    component = Component(ArraySource(tokens, np.full(DOCUMENTS, DOCUMENT)))
    mixture = Mixture(
        {"random": component},
        {"random": 1.0},
        sequence_length=data["sequence_length"],
        batch_size=data["batch_size"],
    )
    with Loader(mixture) as loader:
        train(parse_run(document, str(RUN)), loader, str(folder))


def start(folder: Path, steps: int, save_every: int, kill_after: int | None) -> dict[str, Any]:
    """Start once; kill it once the checkpoint of step `kill_after` exists, or let it finish. Return its metrics."""
    before, begun = set(rows_of(folder)), time.perf_counter()
    arguments = ["--in", str(folder), "--total", str(steps), "--steps", str(save_every)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.trainer.resume", *arguments], stderr=subprocess.DEVNULL
    )
    first = None
    while process.poll() is None:
        if first is None and set(rows_of(folder)) - before:
            first = time.perf_counter() - begun
        if kill_after and list(folder.glob(f"*/train-*/checkpoints/step-{kill_after:09d}/{MARKER}")):
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.02)
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"the run ended with {process.returncode}")
    rows = [json.loads(line) for line in rows_of(folder) if line not in before]
    seconds = list({row["global_step"]: row["throughput/duration"] for row in rows}.values())[WARM:]
    low, middle, high = np.quantile(seconds, (0.1, 0.5, 0.9))
    return {"steps": len(seconds) + WARM, "first_step": first, "p10": low, "median": middle, "p90": high}


def rows_of(folder: Path) -> list[str]:
    """Complete rows of metrics; they contain times, so no two are equal."""
    files = list(folder.glob(f"*/train-*/{FILE_NAME}"))
    lines = files[0].read_text(encoding="utf-8").splitlines(keepends=True) if files else []
    return [line for line in lines if line.endswith("\n")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="steps between two checkpoints")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)  # of one start, with its total
    parser.add_argument("--total", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.folder:
        run_to_the_end(options.folder, options.total, options.steps)
        return
    total, starts = options.steps * (options.kills + 1), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.kills + 1):
            kill_after = (number + 1) * options.steps if number < options.kills else None
            one = start(Path(folder), total, options.steps, kill_after)
            starts.append(one | {"of_first": one["median"] / starts[0]["median"] if starts else 1.0})
            print(
                f"start {number + 1}: {one['first_step']:5.1f} s to the first step, then {one['median'] * 1e3:7.1f} ms "
                f"a step (p10 {one['p10'] * 1e3:.1f}, p90 {one['p90'] * 1e3:.1f}), {starts[-1]['of_first']:.2f} of the "
                f"first start's",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(starts, indent=1) + "\n")


if __name__ == "__main__":
    main()
