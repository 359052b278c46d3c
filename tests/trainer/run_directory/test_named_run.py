"""A run that another run names by its place in the root is found without looking at dates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.trainer.run_directory.named_run import path_in, place_in, with_absolute_places, with_named_runs


def write_runs(root: Path, **finished: bool) -> None:
    """Make the directories of runs named `base`. finished: by the digits in the names, whether it has a manifest."""
    for digits, done in finished.items():
        folder = root / "base" / f"train-{digits}"
        folder.mkdir(parents=True)
        if done:
            (folder / "manifest.json").write_text("{}")


def named(root: Path, place: str, setting: str = "initialize_from") -> str:
    return with_named_runs({"steps": 1, setting: place}, str(root))[setting]


def test_name_stands_for_its_only_finished_run(tmp_path: Path) -> None:
    write_runs(tmp_path, aa=False, bb=True, cc=False)
    for setting in ("initialize_from", "resume_from"):
        found = named(tmp_path, "{root}/base", setting)
        assert found == "{root}/base/train-bb"
        assert place_in(str(tmp_path), found) == str(tmp_path / "base" / "train-bb")
    shutil.copytree(tmp_path / "base", tmp_path / "moved" / "base")
    assert named(tmp_path / "moved", "{root}/base/") == "{root}/base/train-bb"


def test_a_run_can_be_named_itself_and_other_paths_stay(tmp_path: Path) -> None:
    write_runs(tmp_path, aa=False)
    assert named(tmp_path, "{root}/base/train-aa") == "{root}/base/train-aa"
    assert named(tmp_path, "/elsewhere/train-aa") == place_in("root", "/elsewhere/train-aa") == "/elsewhere/train-aa"
    assert with_named_runs({"steps": 1}, str(tmp_path)) == {"steps": 1}


def test_relative_paths_are_those_of_the_run_file(tmp_path: Path) -> None:
    places = {"initialize_from": "runs/../a", "resume_from": "~/a"}
    found = with_absolute_places({"steps": 1, **places}, tmp_path)
    assert found == {"steps": 1, "initialize_from": f"{tmp_path}/runs/../a", "resume_from": f"{Path.home()}/a"}
    for place in ("/abs/a", "{root}/base", "gs://bucket/a", 3):
        assert with_absolute_places({"resume_from": place}, tmp_path) == {"resume_from": place}


def test_a_directory_in_the_root_is_named_without_the_root(tmp_path: Path) -> None:
    inside = f"{tmp_path}/base/train-aa/checkpoints/step-000000003"
    place = path_in(str(tmp_path), inside)
    assert place == named(tmp_path, place) == "{root}/base/train-aa/checkpoints/step-000000003"
    assert place_in(str(tmp_path), place) == inside
    assert path_in(str(tmp_path), f"{tmp_path}-2/base") == f"{tmp_path}-2/base"


def test_missing_and_ambiguous_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="base holds no finished run; first train it"):
        named(tmp_path, "{root}/base")
    write_runs(tmp_path, aa=True, bb=True)
    with pytest.raises(UsageError, match=r'several .* name one of them: "\{root\}/base/train-aa", "\{root\}/base/tra'):
        named(tmp_path, "{root}/base")
