"""The prediction is written before a run, the manifest after it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from datakit.storage.manifest import computed_fingerprint, read_manifest
from datakit.trainer.config import Run
from datakit.trainer.metrics.step_metrics import training_flops
from datakit.trainer.models import grug, olmoe
from datakit.trainer.run_manifest import predict, prediction_of
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import STEPS, TextBytes, saving_run, stopped


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


def test_the_prediction_precedes_the_run_and_stays(tmp_path: Path, lines: list[str]) -> None:
    run = saving_run(expect={"train/loss": 5.0, "eval/loss": 2.0})
    path = Path(stopped(run, tmp_path, 1), "prediction.json")
    before = path.read_bytes()
    prediction = json.loads(before)
    assert prediction["tokens"] == STEPS * 8 * 32
    changed = dataclasses.replace(run, expect={"train/loss": 1.0})
    outcome = train(changed, TextBytes(), str(tmp_path), say=lines.append)
    assert path.read_bytes() == before
    compared = outcome.comparison["train/loss"]
    assert compared["expected"] == 5.0
    assert compared["ratio"] == pytest.approx(outcome.figures["train/loss"] / 5.0)
    assert not compared["law"]
    assert outcome.comparison["eval/loss"]["measured"] is None
    assert "eval/loss: expected 2.0000, not measured" in lines


def test_the_law_is_silent_where_it_does_not_apply() -> None:
    fits = Run("a", 1, model=grug.Config(hidden=512, layers=4))
    steps = round(2e18 / training_flops(fits, [(1, 64, 4096)], with_head=False))
    outline = [(steps, 64, 4096)]
    assert set(predict(fits, outline)["expected"]) == {"eval/macro_loss", "eval/macro_bpb"}
    small_budget = [(steps // 10, 64, 4096)]
    other_tokenizer = dataclasses.replace(fits, model=dataclasses.replace(fits.model, vocabulary=50_304))
    other_model = Run("a", 1, kind="olmoe", model=olmoe.Config(vocabulary=128_256))
    for run, shapes in ((fits, small_budget), (other_tokenizer, outline), (other_model, outline)):
        assert not predict(run, shapes)["law"]["applies"]
        assert predict(run, shapes)["expected"] == {}


@pytest.mark.parametrize("damage", [b"", b"\x00" * 9, b"\xff\xfe", b'{"law": ', b"[]", b'{"law": null}'], ids=repr)
def test_a_damaged_prediction_is_made_again(damage: bytes, tmp_path: Path, lines: list[str]) -> None:
    run, outline = saving_run(expect={"train/loss": 5.0}), [(STEPS, 8, 32)]
    made = prediction_of(str(tmp_path), run, outline, lines.append, write=True)
    path = tmp_path / "prediction.json"
    path.write_bytes(damage)
    assert prediction_of(str(tmp_path), run, outline, lines.append, write=False) == made
    assert path.read_bytes() == damage
    assert prediction_of(str(tmp_path), run, outline, lines.append, write=True) == made == json.loads(path.read_bytes())
    assert (tmp_path / "prediction.set-aside.json").read_bytes() == damage
    (warning,) = lines
    assert "moved to prediction.set-aside.json, and a new prediction is made" in warning
