"""The newest checkpoint that can be read is restored."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from etils import epath

from datakit.errors import CheckpointError
from datakit.trainer.checkpoints.checkpoint import MARKER, Candidate, commit
from datakit.trainer.checkpoints.select import restore_newest
from datakit.trainer.train import trainer_of
from tests.support.paths import REPOSITORY
from tests.support.processes import fake_devices
from tests.support.trainer.trainer_runs import checkpoints_of, directory_in, saving_run

pytestmark = pytest.mark.xdist_group("training-runs")  # as in test_train.py


def rewrite(candidate: Candidate, name: str, content: bytes | None) -> None:
    """Change a file of a checkpoint, with checksums that match: orbax wrote it so, or another version of orbax did."""
    path = Path(candidate.path) / "state" / name
    path.unlink() if content is None else path.write_bytes(content)
    Path(candidate.path, MARKER).unlink()
    commit(epath.Path(candidate.path), candidate.marker)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("_METADATA", None),
        ("_METADATA", b"{"),
        ("_METADATA", b"{}"),
        ("_METADATA", b"[1]"),
        ("manifest.ocdbt", b"x" * 50),
    ],
    ids=repr,
)
def test_an_error_of_orbax_is_followed_by_the_older_checkpoint(
    name: str, content: bytes | None, finished: str, tmp_path: Path, lines: list[str]
) -> None:
    place = shutil.copytree(finished, tmp_path / "copy")
    newest, older, *_ = checkpoints_of(str(place))
    rewrite(newest, name, content)
    found, like = checkpoints_of(str(place)), trainer_of(saving_run()).like()
    state, restored = restore_newest(found, like, lines.append)
    assert (int(state["step"]), restored.path) == (9, older.path)
    (warning,) = lines
    assert warning.startswith(f"warning: {newest.path} cannot be read (")
    assert warning.endswith("); trying an older one")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read \(1 tried\)") as raised:
        restore_newest(found[:1], like, lines.append)
    assert raised.value.__cause__ is not None


FILLED = """
import sys
from tests.support.trainer.trainer_runs import TextBytes, saving_run, train
from datakit.cli.console import note
from datakit.errors import DatakitError
try:
    train(saving_run(), TextBytes(), sys.argv[1])
except DatakitError as error:
    note(f"error: {error}")
"""


def train_on(disk: Path) -> list[str]:
    """Train in a process of its own, and return the lines that it wrote to standard error."""
    environment = {**os.environ, **fake_devices(2), "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", FILLED, str(disk)]
    done = subprocess.run(words, check=False, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def test_a_full_disk_is_reported_in_one_line(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if subprocess.call(mount, stderr=subprocess.DEVNULL):
        pytest.skip("needs the right to mount a small file system")
    try:
        lines = train_on(tmp_path)
        (error,) = [line for line in lines if line.startswith("error: ")]
        assert "o space left" in error and "; free some space" in error  # for the checkpoint or the metrics
        assert len(lines) < 30
        (newest, *_) = checkpoints_of(directory_in(tmp_path))
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path)], check=True)
        lines = train_on(tmp_path)
        assert any(line.startswith(f"resumed from step {newest.marker.step} ") for line in lines)
        assert any(line.startswith("finished 12 steps") for line in lines)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
