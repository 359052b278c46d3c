"""`datakit export hf` prints the folder that it writes, and refuses what is no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
from datakit.cli import main
from tests.support.hub_models.runs import directory_of_run, finished_run

pytestmark = pytest.mark.xdist_group("hub-runs")


def call(*arguments: str) -> object:
    """Return a command's exit code; groups of commands raise SystemExit."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def test_the_command_prints_the_folder_and_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, place = str(directory_of_run(finished_run())), str(tmp_path / "out")
    words = ["export", "hf", directory, "--output", place, "--dtype", "float32", "--shard-size", "0.0001"]
    assert call(*words) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{place}\n"
    assert shown.err.splitlines()[-1] == f"open it:   transformers.AutoModelForCausalLM.from_pretrained({place!r})"
    assert len([*(tmp_path / "out").glob("model-*-of-*.safetensors")]) > 1
    assert call(*words) == 0
    assert "this export was already there; nothing is written" in capsys.readouterr().err
    assert call(*words, "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["folder"], done["step"], done["created"]) == (place, 3, False)
    assert call("export", "hf", directory, "--output", place) == 2
    assert "holds another export" in capsys.readouterr().err


def test_a_run_file_and_a_checkpoint_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished_run()
    checkpoint = str(directory_of_run(folder) / "checkpoints/step-000000002")
    words = ["export", "hf", str(folder / "run.toml"), "--root", str(folder), "--checkpoint", checkpoint, "--ema"]
    assert call(*words, "--output", str(tmp_path / "out"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == checkpoint
    assert json.loads((tmp_path / "out/datakit.json").read_text())["averaged"] is True


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", "hf", str(tmp_path)) == 2
    assert "is not the directory of a finished training run" in capsys.readouterr().err
    assert call("export", "hf", str(tmp_path / "missing")) == 2
    assert "no training run" in capsys.readouterr().err
