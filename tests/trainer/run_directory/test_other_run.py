"""The name of another run in a fingerprint says which run it is, and not how its path was written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import CheckpointError
from datakit.trainer.config import Run
from datakit.trainer.run_directory.other_run import identity_of
from datakit.trainer.run_file import RunFile
from tests.support.trainer.trainer_runs import checkpoints_of, saving_run, silent, stopped

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py
MIXTURE = {"fingerprint": "a"}
RUN = "base/train-0123456789ab"
STEP = "checkpoints/step-000000003"


def named(place: str) -> str | None:
    return identity_of("resume_from", place)


@pytest.mark.parametrize(
    "place",
    [
        f"{{root}}/{RUN}",
        f"{{root}}/../x/{RUN}/checkpoints",
        f"/a/{RUN}/",
        f"/a/b/../{RUN}/checkpoints",
        f"elsewhere/{RUN}",
        f"~/{RUN}",
        f"gs://bucket/{RUN}",
        f"/scratch/{RUN}-cdef01234567",
    ],
)
def test_a_run_has_one_name_for_every_path(place: str) -> None:
    assert named(place) == f"{{root}}/{RUN}"


@pytest.mark.parametrize("place", [f"/a/{RUN}/{STEP}", f"{{root}}/{RUN}/{STEP}/", f"/t/{RUN}-cdef01234567/{STEP}"])
def test_so_has_a_checkpoint(place: str) -> None:
    assert named(place) == f"{{root}}/{RUN}/{STEP}"


def test_different_runs_have_different_names() -> None:
    others = ["/a/other/train-0123456789ab", "/a/base/train-0123456789ac", f"/a/{RUN}/checkpoints/step-000000004"]
    assert len({named(place) for place in (f"/a/{RUN}", f"/a/{RUN}/{STEP}", *others)}) == 5


def run_of(folder: Path, place: str) -> Run:
    """A run file's `initialize_from`, in the run of the other tests."""
    file = RunFile(folder / "run.toml", {"name": "plays", "steps": 12, "initialize_from": place}, {})
    return saving_run(initialize_from=file.run(256).initialize_from)


def test_the_same_words_in_two_folders_name_two_runs(tmp_path: Path, lines: list[str]) -> None:
    """The working directory does not matter either: it holds no run."""
    folders = [tmp_path / "0", tmp_path / "1"]
    directories = [stopped(saving_run(seed=seed), folder, 4) for seed, folder in enumerate(folders)]
    for folder, directory in zip(folders, directories, strict=True):
        (folder / "here").symlink_to(directory)
    assert len({run_of(folder, "here").fingerprint(MIXTURE) for folder in folders}) == 2
    for folder, directory in zip(folders, directories, strict=True):
        relative = run_of(folder, f"plays/{Path(directory).name}")
        assert relative.fingerprint(MIXTURE) == run_of(tmp_path, directory).fingerprint(MIXTURE)
        stopped(relative, folder / "out", 1, lines.append)
        assert f"fresh start with the weights of step 3 of {directory}/checkpoints/step-000000003" in lines


def test_a_copy_with_another_name_is_known_by_its_markers(finished: str, tmp_path: Path) -> None:
    places = [Path(shutil.copytree(finished, tmp_path / name)) for name in ("one", "two")]
    marker = checkpoints_of(finished)[0].marker
    assert [named(str(place)) for place in places] == [f"train-{marker.run}"] * 2
    moved = (places[0] / "checkpoints/step-000000009").rename(tmp_path / "step-000000009")
    assert named(str(moved)) == f"train-{marker.run}/checkpoints/step-000000009"
    with pytest.raises(CheckpointError, match=r"resume_from = '/none': found no valid checkpoint in /none/checkpoints"):
        named("/none")


@pytest.mark.parametrize("setting", ["initialize_from", "resume_from"])
def test_a_directory_with_the_name_of_another_run_is_refused(setting: str, finished: str, tmp_path: Path) -> None:
    wrong = shutil.copytree(finished, tmp_path / "plays" / "train-0123456789ab")
    settings: dict[str, Any] = {setting: str(wrong)}
    with pytest.raises(CheckpointError, match=re.escape(f"were written by {Path(finished).name}; give the directory")):
        stopped(saving_run(**settings), tmp_path / "out", 1, silent)
