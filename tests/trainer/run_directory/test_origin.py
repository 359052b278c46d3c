"""A run that starts from another run once more starts from the same checkpoint, or not at all."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import CheckpointError, CorruptError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Run
from datakit.trainer.run_directory.origin import recorded_origin, same_origin, write_origin
from datakit.trainer.train import train
from tests.support.trainer.trainer_runs import TextBytes, checkpoints_of, losses, saving_run, silent, stopped

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py


def another(finished: str, root: Path, *steps: int) -> Path:
    """A copy of the finished run that has only the checkpoints of these steps."""
    place = Path(shutil.copytree(finished, root / "plays" / Path(finished).name))
    for one in checkpoints_of(str(place)):
        if one.marker.step not in steps:
            shutil.rmtree(str(one.path))
    return place


def save_more(finished: str, place: Path, step: int) -> None:
    """Let the copied run save one more checkpoint."""
    name = f"checkpoints/step-{step:09d}"
    shutil.copytree(Path(finished, name), place / name)


def starts_at(setting: str, step: int, place: Path) -> str:
    said = "fresh start with the weights of step" if setting == "initialize_from" else "resumed from step"
    return f"{said} {step} of {place}/checkpoints/step-{step:09d}"


@pytest.mark.parametrize("setting", ["resume_from", "initialize_from"])
def test_a_repeat_starts_from_the_same_checkpoint(
    setting: str, finished: str, tmp_path: Path, lines: list[str]
) -> None:
    other = another(finished, tmp_path / "other", 3)
    settings: dict[str, Any] = {setting: str(other)}
    run, after = saving_run(**settings), 5 if setting == "resume_from" else 2
    directory = stopped(run, tmp_path / "out", after, lines.append)
    assert starts_at(setting, 3, other) in lines and not checkpoints_of(directory)
    first = losses(directory)
    save_more(finished, other, 9)
    afresh = dataclasses.replace(run, checkpoint=dataclasses.replace(run.checkpoint, load=False))
    for repeat in (run, afresh):
        lines.clear()
        stopped(repeat, tmp_path / "out", after, lines.append)
        assert starts_at(setting, 3, other) in lines
        assert losses(directory) == first
    shutil.rmtree(other / "checkpoints/step-000000003")
    with pytest.raises(CheckpointError, match=r"started from step 3 in .*step-000000003, which is gone or has changed"):
        train(run, TextBytes(), str(tmp_path / "out"))
    shutil.rmtree(directory)
    lines.clear()
    stopped(run, tmp_path / "out", 10, lines.append)
    assert starts_at(setting, 9, other) in lines


def test_only_the_same_checkpoint_will_do(finished: str, tmp_path: Path) -> None:
    """It may be in another place."""
    nine, six = checkpoints_of(finished)[1:3]
    assert same_origin(str(tmp_path), [nine, six]) == [nine, six]
    write_origin(str(tmp_path), {"by": "resume_from", **six.named(), "checkpoint": "/moved"})
    assert same_origin(str(tmp_path), [nine, six]) == [six]
    write_origin(str(tmp_path), {"by": "resume_from", **six.named()})
    (found,) = same_origin(str(tmp_path), [nine])
    assert found.path == six.path
    write_origin(str(tmp_path), {"by": "resume_from", **six.named(), "marker": "0" * 32})
    with pytest.raises(CheckpointError, match="put this checkpoint back or, to start from another one, move"):
        same_origin(str(tmp_path), [nine, six])


def test_runs_without_another_run_have_no_record(tmp_path: Path) -> None:
    run: Run = saving_run(checkpoint=Checkpoints(interval_minutes=1e9))
    assert recorded_origin(stopped(run, tmp_path / "run", 1, silent)) is None
    write_origin(str(tmp_path), {"by": "initialize_from", "folder": "models/base", "files": {}})
    assert recorded_origin(str(tmp_path)) is None
    (tmp_path / "origin.json").write_text("{")
    with pytest.raises(CorruptError, match=r"origin\.json cannot be read"):
        recorded_origin(str(tmp_path))
