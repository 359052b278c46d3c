"""A checkpoint is data: nothing that it names is imported, and one of a newer version is neither used nor set aside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest
from etils import epath

from datakit.errors import CheckpointError, NewerFormatError
from datakit.trainer.checkpoints.candidates import candidates
from datakit.trainer.checkpoints.checkpoint import MARKER, commit
from datakit.trainer.checkpoints.select import restore_newest
from datakit.trainer.train import trainer_of
from tests.support.trainer.trainer_runs import checkpoints_of, saving_run

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py
CANARY = "canary.make"


def renamed(value: object) -> object:
    """Replace every string that could name a class or a handler by the name of a module of ours."""
    if isinstance(value, dict):
        return {key: renamed(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [renamed(entry) for entry in value]
    return CANARY if isinstance(value, str) else value


def test_metadata_of_a_checkpoint_names_no_code_to_import(
    finished: str, tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "canary.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (newest, *_) = checkpoints_of(str(place))
    state = Path(newest.path) / "state"
    altered = [path for path in state.rglob("*METADATA") if path.is_file()]
    assert altered
    for path in altered:
        path.write_text(json.dumps(renamed(json.loads(path.read_text()))))
    Path(newest.path, MARKER).unlink()
    commit(epath.Path(newest.path), newest.marker)
    with contextlib.suppress(CheckpointError):
        restore_newest(checkpoints_of(str(place))[:1], trainer_of(saving_run()).like(), lines.append)
    assert "canary" not in sys.modules
    assert not (tmp_path / "imported").exists()


def test_checkpoint_of_a_newer_version_stops_the_run(finished: str, tmp_path: Path, lines: list[str]) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "copy"))
    (newest, *_) = checkpoints_of(str(place))
    marker = Path(newest.path, MARKER)
    marker.write_text(json.dumps({"format": "datakit.checkpoint/2", "at": newest.marker.step}))
    written = marker.read_bytes()
    with pytest.raises(NewerFormatError, match=r"commit\.json was written by a newer version of datakit"):
        checkpoints_of(str(place))
    assert marker.read_bytes() == written


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "state/../../outside", "link"])
def test_marker_that_names_files_elsewhere_is_ignored(
    name: str, finished: str, tmp_path: Path, lines: list[str]
) -> None:
    """Nothing that it names is opened: reading the named pipe would never end."""
    place = Path(shutil.copytree(finished, tmp_path / "copy"))
    (newest, *_) = checkpoints_of(str(place))
    os.mkfifo(Path(newest.path).parent / "outside")
    Path(newest.path, "link").symlink_to("../outside")
    marker = msgspec.structs.replace(newest.marker, files={**newest.marker.files, name: (0, "0" * 32)})
    Path(newest.path, MARKER).write_bytes(msgspec.json.encode(marker))
    assert newest.path not in [one.path for one in candidates([str(newest.path.parent)], lines.append)]
    assert any(f"it names {name!r}, which is not below it" in line for line in lines)


def test_orbax_list_that_names_arrays_elsewhere_is_refused(finished: str, tmp_path: Path, lines: list[str]) -> None:
    place = Path(shutil.copytree(finished, tmp_path / "copy"))
    (newest, *_) = checkpoints_of(str(place))
    metadata = Path(newest.path, "state", "_METADATA")
    listed = json.loads(metadata.read_text())
    next(iter(listed["tree_metadata"].values()))["key_metadata"][-1]["key"] = "../../../outside"
    metadata.write_text(json.dumps(listed | {"use_ocdbt": False}))
    Path(newest.path, MARKER).unlink()
    commit(epath.Path(newest.path), newest.marker)
    with pytest.raises(CheckpointError, match=r"whose name contains '../../../outside', which leads out of the"):
        restore_newest(checkpoints_of(str(place))[:1], trainer_of(saving_run()).like(), lines.append)
