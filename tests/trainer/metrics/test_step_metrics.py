"""FLOPs and tokens of a run are sums over its steps, whatever its schedules, padding and interruptions."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.loader import Loader, Packing
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.metrics.step_metrics import training_flops
from datakit.trainer.models import grug
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import PowerCut, growing_batches, silent, small_run, tiny_run


class Cut(Loader):
    """A loader that ends before step 4."""

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Any, None, None]:
        yield from super().iterate(start, 4)
        raise PowerCut


@pytest.mark.parametrize("packing", [None, Packing("drop")])
def test_flops_and_tokens_add_up_after_a_stop(packing: Packing | None, tmp_path: Path) -> None:
    run = tiny_run(steps=6, checkpoint=Checkpoints(1e9, keep_every=2))
    mixture = growing_batches(99 if packing is None else 13, packing)
    with Cut(mixture) as loader, pytest.raises(PowerCut):
        train(run, loader, str(tmp_path), say=silent)
    with Loader(mixture) as loader:
        outcome = train(run, loader, str(tmp_path), say=silent)
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


def test_training_flops_are_three_forward_passes() -> None:
    run = small_run()
    short, long = (grug.flops_per_token(run.model, length) for length in (16, 32))
    found = training_flops(run, [(3, 8, 16), (2, 4, 32)])
    assert found == pytest.approx(3 * (3 * 8 * 16 * short + 2 * 4 * 32 * long))
