"""Sums over a run are sums over its steps, whatever its schedules, its padding and its interruptions."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.loader import ArraySource, Component, Loader, Mixture, Packing, Schedule
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.metrics.progress_line import Progress
from datakit.trainer.metrics.step_metrics import training_flops
from datakit.trainer.metrics.trackers import read_metrics
from datakit.trainer.models import grug
from datakit.trainer.train import train
from tests.support.trainer_runs import small_run


class PowerCut(Exception):
    """What ends a run in these tests."""


class Cut(Loader):
    """A loader that ends before step 4."""

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Any, None, None]:
        yield from super().iterate(start, 4)
        raise PowerCut


def growing(document: int = 99, packing: Packing | None = None) -> Mixture:
    """Batches of 8 x 16, from step 3 on of 8 x 32, from step 4 on of 16 x 32."""
    tokens = np.arange(document * 100) % 256
    source = ArraySource(tokens.astype(np.uint16), np.full(100, document))
    lengths, sizes = Schedule(((0, 16), (3, 32))), Schedule(((0, 8), (4, 16)))
    return Mixture({"a": Component(source, packing=packing)}, {"a": 1.0}, sequence_length=lengths, batch_size=sizes)


def test_a_loader_tells_the_shapes_of_its_batches() -> None:
    with Loader(growing()) as loader:
        assert loader.outline(6) == [(3, 8, 16), (1, 8, 32), (2, 16, 32)]
        assert loader.outline(4) == [(3, 8, 16), (1, 8, 32)]
        assert loader.outline(0) == []
        for batches, rows, length in [(0, 8, 16), (3, 8, 32), (4, 16, 32)]:
            assert loader[batches].tokens.shape == (rows, length)


@pytest.mark.parametrize("packing", [None, Packing("drop")])
def test_flops_and_tokens_add_up_across_schedules_padding_and_a_stop(packing: Packing | None, tmp_path: Path) -> None:
    run = small_run(steps=6, compilation_cache=str(tmp_path / "compiled"), checkpoint=Checkpoints(1e9, keep_every=2))
    mixture = growing(99 if packing is None else 13, packing)
    with Cut(mixture) as loader, pytest.raises(PowerCut):
        train(run, loader, str(tmp_path), say=lambda _: None)
    with Loader(mixture) as loader:
        outcome = train(run, loader, str(tmp_path), say=lambda _: None)
    assert outcome.resumed_from == 4
    rows = read_metrics(outcome.directory)
    spent = np.cumsum([row["throughput/gflops_per_second"] * row["throughput/duration"] for row in rows])
    np.testing.assert_allclose([row["throughput/total_gflops"] for row in rows], spent, rtol=1e-9)
    tokens = sum(row["throughput/tokens_per_second"] * row["throughput/duration"] for row in rows)
    assert rows[-1]["throughput/total_tokens"] == pytest.approx(tokens)
    slots = 3 * 8 * 16 + 8 * 32 + 2 * 16 * 32
    assert (tokens < slots) == (packing is not None)
    prediction = json.loads((Path(outcome.directory) / "prediction.json").read_text())
    assert prediction["tokens"] == slots
    law = training_flops(run, [(3, 8, 16), (1, 8, 32), (2, 16, 32)], with_head=False)
    assert prediction["law"]["flops"] == pytest.approx(law)


def test_training_flops_are_three_forward_passes_over_each_position() -> None:
    run = small_run()
    short, long = (grug.flops_per_token(run.model, length) for length in (16, 32))
    found = training_flops(run, [(3, 8, 16), (2, 4, 32)])
    assert found == pytest.approx(3 * (3 * 8 * 16 * short + 2 * 4 * 32 * long))


def test_the_line_that_is_watched_is_over_all_of_the_time() -> None:
    lines: list[str] = []
    progress = Progress(steps=2, seconds=0.0, say=lines.append)
    row = {"train/loss": 2.0, "throughput/duration": 0.2, "throughput/mfu": 40.0, "throughput/loading_time": 0.7}
    progress.step(1, 1000, 1.0, row)
    assert lines == ["step 1/2  loss 2.0000  1.0 k tokens/s  MFU 8.0 %  0:01 left  70% of it waiting for data"]
    calm = Progress(steps=2, seconds=0.0, say=lines.append)
    calm.step(1, 1000, 1.0, row | {"throughput/loading_time": 0.01})
    assert lines[-1].endswith("left")
