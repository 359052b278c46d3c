"""Two processes of JAX train one run: the figures of one process, one end for both, one checkpoint to go on from."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from datakit.trainer.checkpoints.checkpoint import candidates
from datakit.trainer.metrics.trackers import read_metrics
from tests.support.paths import REPOSITORY

DEVICES, STEPS = 4, 30
TRAIN = """
import sys
import jax
process, processes, port, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if processes > 1:
    jax.distributed.initialize(f"localhost:{port}", processes, process)
import numpy as np
from datakit.loader import ArraySource, Component, Loader, Mixture
from datakit.trainer.train import train
from tests.support.trainer_runs import shakespeare, small_run

tokens = np.frombuffer(shakespeare()[:60_000], np.uint8).astype(np.uint16)
component = Component(ArraySource(tokens, np.full(60, 1000)), validation_tokens=2000)
mixture = Mixture({"plays": component}, {"plays": 1.0}, sequence_length=32, batch_size=8)
with Loader(mixture, host=process, hosts=processes) as loader:
    held_out = lambda: loader.iterate(0, 2)
    train(small_run(steps=int(sys.argv[5])), loader, out, evaluations={"seen": held_out})
"""


def start(process: int, processes: int, port: int, out: Path) -> subprocess.Popen[str]:
    """One process with its part of the devices."""
    fast = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags = f"--xla_force_host_platform_device_count={DEVICES // processes} {fast}"
    root = str(REPOSITORY)
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(process), str(processes), str(port), str(out), str(STEPS)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )


def pair(out: Path) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Both processes of one start."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return start(0, 2, port, out), start(1, 2, port, out)


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    alone = start(0, 1, 0, tmp_path / "one")
    assert alone.wait(timeout=200) == 0, alone.stderr and alone.stderr.read()

    first, second = pair(tmp_path / "two")
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("step 2/"):
            second.send_signal(signal.SIGTERM)  # one is asked to end; both must, after the same step
            break
    ended = first.stderr.read()
    assert first.wait(timeout=100) != 0 and second.wait(timeout=100) != 0, ended
    directory = str(next((tmp_path / "two/plays").iterdir()))
    (saved,) = candidates([f"{directory}/checkpoints"], lambda _: None)
    assert saved.marker.step == len(read_metrics(directory)) < STEPS

    first, second = pair(tmp_path / "two")
    (_, said), (_, quiet) = first.communicate(timeout=200), second.communicate(timeout=200)
    assert (first.returncode, second.returncode) == (0, 0), said + quiet
    assert f"resumed from step {saved.marker.step}" in said
    assert "resumed" not in quiet
    ours, theirs = (read_metrics(str(next((tmp_path / name / "plays").iterdir()))) for name in ("two", "one"))
    assert len(ours) == len(theirs) == STEPS
    np.testing.assert_allclose([row["train/loss"] for row in ours], [row["train/loss"] for row in theirs], rtol=1e-3)
    np.testing.assert_allclose(ours[-1]["eval/seen/loss"], theirs[-1]["eval/seen/loss"], rtol=1e-3)
