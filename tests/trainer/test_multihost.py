"""Two JAX processes train one run: the losses of one process, one end for both, one checkpoint to resume from."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest

from datakit.loader import Loader
from datakit.trainer import multihost
from datakit.trainer.checkpoints.checkpoint import Checkpoints, Writer
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.train import train
from tests.support.paths import REPOSITORY
from tests.support.processes import fake_devices
from tests.support.trainer.trainer_runs import STEPS, bytes_mixture, checkpoints_of, directory_in, silent, tiny_run

TRAIN = """
import os, signal, sys
import jax
process, port, out, stop = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
jax.distributed.initialize(f"localhost:{port}", 2, process)
from datakit.loader import Loader
from datakit.trainer.metrics.step_metrics import StepMetrics
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import bytes_mixture, tiny_run

row = StepMetrics.row
def signalled(self, step, *arguments):
    if step == stop and process == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return row(self, step, *arguments)
StepMetrics.row = signalled
with Loader(bytes_mixture(), host=process, hosts=2) as loader:
    train(tiny_run(), loader, out, evaluations={"seen": lambda: loader.iterate(0, 2)})
"""


def start_pair(out: Path, stop: int = 0) -> list[tuple[int, str]]:
    """Run both processes; the second one gets SIGTERM in step `stop`. Return their exit codes and standard errors."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    # JAX lets only the first process write the compilation cache. With it, the first one would wait for the other one's
    # compiler until the connection between them times out (30 s).
    environment = {
        **os.environ,
        **fake_devices(2),
        "PYTHONPATH": str(REPOSITORY),
        "JAX_ENABLE_COMPILATION_CACHE": "0",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(process), port, str(out), str(stop)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in (0, 1)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    (first, said), (second, _) = start_pair(tmp_path / "two", stop=2)
    assert (first, second) == (143, 143), said  # one process is asked to stop; both must, after the same step
    directory = directory_in(tmp_path / "two")
    (saved,) = checkpoints_of(directory)
    assert saved.marker.step == len(read_metrics(directory)) == 4  # two steps later: wishes travel along with a step

    (first, said), (second, quiet) = start_pair(tmp_path / "two")
    assert (first, second) == (0, 0), said + quiet
    assert "resumed from step 4" in said
    assert "resumed" not in quiet

    with Loader(bytes_mixture()) as loader:
        tags, devices = {"seen": lambda: loader.iterate(0, 2)}, jax.devices()[:4]
        alone = train(tiny_run(), loader, str(tmp_path / "one"), evaluations=tags, devices=devices, say=silent)
    ours, theirs = read_metrics(directory), read_metrics(alone.directory)
    assert len(ours) == len(theirs) == STEPS
    np.testing.assert_allclose([row["train/loss"] for row in ours], [row["train/loss"] for row in theirs], rtol=1e-3)
    np.testing.assert_allclose(ours[-1]["eval/seen/loss"], theirs[-1]["eval/seen/loss"], rtol=1e-3)


def test_a_save_that_is_due_by_the_time_is_not_voted_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vote for step 3 is given before the state after step 2 has been saved."""
    asked = list[tuple[int, bool]]()

    def answers(step: int, before: bool) -> tuple[bool, bool]:
        asked.append((step, before))
        return step >= 2 and not before, False

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost, "_any", np.array)
    votes = multihost.Votes(answers)
    assert [votes.at(step)[0] for step in (1, 2, 3)] == [False, True, False]
    assert asked == [(1, False), (2, False), (3, True), (4, False)]


def test_a_checkpoint_of_the_step_before_resets_the_time(tmp_path: Path) -> None:
    writer = Writer(Checkpoints(interval_minutes=1e-9, keep_every=5), str(tmp_path), str(tmp_path), "run", silent)
    with closing(writer):
        assert writer.due(3, False) and not writer.due(3, False, before=True)
        assert writer.due(5, False, before=True) and writer.due(3, evaluates=True, before=True)
