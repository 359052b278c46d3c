"""A finished run can be used from a root in which nothing can be written; a run that has to write says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults.abandoned import unlocked_name
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import step, tree

# Permissions do not bind a superuser, so one drops the capabilities that override them.
BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
MOUNTED = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount --bind root root && mount -o remount,ro,bind root && exec "$@"',
    "sh",
]
COMMANDS = (
    ("run", "shelf/shelf.toml", "--root", "root"), ("plan", "shelf/shelf.toml", "--root", "root"), ("status", "root"),
    ("ls", "root"), ("inspect", "root/shelf"), ("validate", "CACHE"), ("cache", "stats", "root/shelf"),
    ("gc", "root"), ("diff", "root/shelf", "root/shelf"),
)  # fmt: skip


def can_mount(folder: Path) -> bool:
    (folder / "root").mkdir()
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run([*MOUNTED, "touch", "root/file"], cwd=folder, capture_output=True, text=True, check=False)
    (folder / "root").rmdir()
    return "Read-only file system" in done.stderr


def datakit(prefix: list[str], *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "datakit", *words],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(params=["permissions", "mount"])
def prefix(request: pytest.FixtureRequest, finished_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The start of a command for which the root of the finished run is read-only."""
    if request.param == "mount":
        if not can_mount(tmp_path_factory.mktemp("mount")):
            pytest.skip("this user may not mount")
        return MOUNTED
    if BOUND and shutil.which(BOUND[0]) is None:
        pytest.skip("no setpriv to drop a superuser's privileges")
    folders = [finished_copy / "root", *(path for path in (finished_copy / "root").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    request.addfinalizer(lambda: [folder.chmod(0o755) for folder in folders])
    return BOUND


def test_finished_run_is_used_from_a_read_only_root(prefix: list[str], finished_copy: Path) -> None:
    root, cache = finished_copy / "root", step(finished_copy, "root/shelf/tokenize-*")
    before = tree(root, without=())
    for words in COMMANDS:
        done = datakit(prefix, *(str(cache) if word == "CACHE" else word for word in words), cwd=finished_copy)
        assert done.returncode == 0, (words, done.stderr)
    assert tree(root, without=()) == before


def test_new_step_in_a_read_only_root_is_refused_at_once(prefix: list[str], finished_copy: Path) -> None:
    for changes in (["--set", "dedup.threshold=0.9"], ["--set", "name=another"]):
        done = datakit(prefix, "run", "shelf/shelf.toml", "--root", "root", *changes, cwd=finished_copy)
        assert (done.returncode, "no permission to write in" in done.stderr) == (2, True), done.stderr


def test_leftovers_in_a_read_only_root_stop_nothing(
    finished_copy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A driver that was killed right after the manifest leaves such files, which the next run would remove."""
    if not can_mount(tmp_path_factory.mktemp("mount")):
        pytest.skip("this user may not mount")
    done = step(finished_copy, "root/shelf/dedup-*")
    of_a_dead_process = unlocked_name(done, "part")
    hashes = finished_copy / "root/.cache/hashes-novels.json"
    for path in (done / "partial.json", done / "exchange" / "x.arrow", of_a_dead_process, hashes):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({}))
    found = datakit(MOUNTED, "run", "shelf/shelf.toml", "--root", "root", cwd=finished_copy)
    assert found.returncode == 0, found.stderr
