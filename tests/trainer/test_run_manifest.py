"""The prediction is written before a run, the manifest after it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from datakit.storage.manifest import computed_fingerprint, read_manifest
from datakit.trainer.train import train
from tests.support.trainer_runs import STEPS, TextBytes, saving_run, stopped


def test_the_manifest_records_what_ran(finished: str) -> None:
    directory = Path(finished)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["stage"] == "train"
    assert computed_fingerprint(read_manifest(finished)) == manifest["fingerprint"]
    assert manifest["parameters"]["model"]["hidden"] == 32
    assert manifest["details"]["mixture"]["stages"] == [[0, {"text": 1.0}]]
    assert set(manifest["details"]["code"]) == {"version", "sources"}
    assert manifest["totals"]["tokens"] == STEPS * 8 * 32
    assert manifest["counters"] == {"train/sequences": STEPS * 8, "train/tokens": STEPS * 8 * 32}
    sizes = {entry["path"]: entry["bytes"] for entry in manifest["partitions"]}
    assert all((directory / "checkpoints" / path).stat().st_size == size for path, size in sizes.items())


def test_the_prediction_precedes_the_run_and_stays(tmp_path: Path) -> None:
    run = saving_run(expect={"train/loss": 5.0})
    path = Path(stopped(run, tmp_path, 1), "prediction.json")
    before = path.read_bytes()
    prediction = json.loads(before)
    assert prediction["law"]["extrapolated"]
    assert prediction["tokens"] == STEPS * 8 * 32
    outcome = train(dataclasses.replace(run, expect={"train/loss": 1.0}), TextBytes(), str(tmp_path))
    assert path.read_bytes() == before
    compared = outcome.comparison["train/loss"]
    assert compared["expected"] == 5.0
    assert compared["ratio"] == pytest.approx(outcome.figures["train/loss"] / 5.0)
    assert not compared["extrapolated"]
    assert outcome.comparison["eval/macro_loss"]["measured"] is None
