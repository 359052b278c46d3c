"""A disk that fills up in the middle of a run: the run ends at once and says so; the next one finishes, same bytes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import datakit
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import StepFailedError
from tests.support.engine import engine_tasks
from tests.support.faults.mounts import on_a_disk
from tests.support.s3 import s3_root
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree

# The first run, then one with more space on the same disk; codes go to standard output, one a line.
TWICE = (
    '"$@" > /dev/null 2> "$SAYS"; echo $?; find "$DISK" -name ".tmp*" | wc -l; '
    'mount -o remount,size=1g "$DISK"; "$@" > /dev/null; echo $?; cp -r "$DISK" "$KEPT"'
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of one source; a run of it takes 2.2 MB."""
    return write_shelf(tmp_path_factory.mktemp("shelf"), sources=1)


@pytest.fixture(scope="module")
def quiet(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run leaves."""
    root = str(tmp_path_factory.mktemp("quiet"))
    datakit.run(recipe, root=root, workers=2)
    return tree(root)


def run_twice(recipe: Path, root: str, folder: Path, size: str, **variables: str) -> tuple[list[str], str, Path]:
    """(what `TWICE` printed, what the first run said, a copy of the disk at the end)."""
    says, kept = folder / "says", folder / "kept"
    command = [sys.executable, "-m", "datakit", "run", recipe, "--root", root, "--workers", "2"]
    variables |= {"SAYS": str(says), "KEPT": str(kept), "SIZE": size}
    done = on_a_disk(folder / "disk", TWICE, *command, **variables)
    return done.stdout.split(), says.read_text() + done.stderr, kept


@pytest.mark.parametrize("size", ["300k", "2m"])
def test_a_root_without_space(recipe: Path, quiet: dict[str, str], tmp_path: Path, size: str) -> None:
    codes, said, kept = run_twice(recipe, str(tmp_path / "disk"), tmp_path, size)
    assert codes == ["1", "0", "0"], (codes, said)
    assert f"no space left to write {tmp_path}/disk/" in said and "--root" in said and "continues from here" in said
    assert tree(str(kept)) == quiet
    shutil.rmtree(kept)


def test_a_temporary_disk_without_space(recipe: Path, quiet: dict[str, str], tmp_path: Path) -> None:
    with s3_root() as root:
        disk = str(tmp_path / "disk")
        codes, said, _ = run_twice(recipe, root, tmp_path, "100k", TMPDIR=disk)
        assert codes == ["1", "0", "0"], (codes, said)
        assert f"no space left to write {root}" in said and f"the temporary disk ({disk})" in said and "TMPDIR" in said
        assert tree(root) == quiet


TAKE_SCRATCH = """
import sys
from pathlib import Path

import numpy as np

from datakit.dedup.verification.kernels import scratch_array
from datakit.engine.exchange.run_file import map_range
from datakit.errors import NoSpaceError

for take in (
    lambda: scratch_array(Path(sys.argv[1], "table"), (1 << 20,), np.int64),
    lambda: map_range("memory://file", 0, 8 << 20, Path(sys.argv[1])),
):
    try:
        take()
    except NoSpaceError as error:
        print(error)
"""


def test_scratch_without_space_is_an_error_and_no_signal(tmp_path: Path) -> None:
    begin = 'import fsspec; fsspec.filesystem("memory").pipe_file("/file", bytes(8 << 20))'
    disk = tmp_path / "disk"
    script = 'TMPDIR="$DISK" "$@"'
    done = on_a_disk(disk, script, sys.executable, "-c", begin + TAKE_SCRATCH, disk, SIZE="1m")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stderr
    assert all(f"on the temporary disk ({disk})" in line and "set TMPDIR" in line for line in lines)


def test_one_task_without_space_ends_the_step_at_once_though_others_are_done(tmp_path: Path) -> None:
    step, local = engine_tasks.number_step(str(tmp_path)), LocalExecutor(2)
    try:
        with pytest.raises(StepFailedError, match="no space left to write /dev/full") as caught:
            run_step(step, engine_tasks.numbers(40, faults={3: "full"}), lambda: local, RunOptions(), SilentObserver())
        assert caught.value.exit_code == 1
        manifest = run_step(step, engine_tasks.numbers(40), lambda: local, RunOptions(), SilentObserver())
        assert manifest.totals.rows == 80
    finally:
        local.close()
