"""A disk that fills up during a run ends it at once with a message; the next run finishes with the same output."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import datakit
from tests.support.faults.mounts import on_a_disk
from tests.support.s3 import s3_root
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree

# Runs once, then again with more space on the same disk; prints exit codes, one per line.
TWICE = (
    '"$@" > /dev/null 2> "$MESSAGES"; echo $?; find "$DISK" -name ".tmp*" | wc -l; '
    'mount -o remount,size=1g "$DISK"; "$@" > /dev/null; echo $?; cp -r "$DISK" "$KEPT"'
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recipe of one source; a run of it takes 2.2 MB."""
    return write_shelf(tmp_path_factory.mktemp("shelf"), sources=1)


@pytest.fixture(scope="module")
def quiet(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run undisturbed."""
    root = str(tmp_path_factory.mktemp("quiet"))
    datakit.run(recipe, root=root, workers=2)
    return tree(root)


def run_twice(
    recipe: Path, root: str, folder: Path, size: str, floor: int = 0, **variables: str
) -> tuple[list[str], str, Path]:
    """Return the output of `TWICE`, the messages of the first run, and a copy of the disk at the end."""
    messages, kept = folder / "messages", folder / "kept"
    command = [sys.executable, "-m", "datakit", "run", recipe, "--root", root, "--workers", "2", "--ignore-disk-space"]
    command += ["--set", f"limits.min_free_bytes={floor}"]
    variables |= {"MESSAGES": str(messages), "KEPT": str(kept), "SIZE": size}
    done = on_a_disk(folder / "disk", TWICE, *command, seconds=180, **variables)
    return done.stdout.split(), messages.read_text() + done.stderr, kept


@pytest.mark.parametrize("size", ["300k", pytest.param("2m", marks=pytest.mark.soak)])
def test_full_root(recipe: Path, quiet: dict[str, str], tmp_path: Path, size: str) -> None:
    codes, said, kept = run_twice(recipe, str(tmp_path / "disk"), tmp_path, size)
    assert codes == ["1", "0", "0"], (codes, said)
    assert f"no space left to write {tmp_path}/disk/" in said and "--root" in said and "continues from here" in said
    assert tree(str(kept)) == quiet
    shutil.rmtree(kept)


def assert_full_temporary_disk(recipe: Path, quiet: dict[str, str], folder: Path, size: str) -> None:
    with s3_root() as root:
        disk = str(folder / "disk")
        codes, said, _ = run_twice(recipe, root, folder, size, TMPDIR=disk)
        assert codes == ["1", "0", "0"], (codes, said)
        assert f"no space left to write {root}" in said and f"the temporary disk ({disk})" in said and "TMPDIR" in said
        assert tree(root) == quiet


def test_full_temporary_disk(tmp_path: Path) -> None:
    recipe = tmp_path / "texts.toml"
    recipe.write_text('name = "texts"\n\n[[sources]]\nname = "texts"\nurl = "texts.jsonl"\n')
    texts = (json.dumps({"text": f"{number} {os.urandom(4_000).hex()}"}) + "\n" for number in range(40))
    (tmp_path / "texts.jsonl").write_text("".join(texts))
    datakit.run(recipe, root=tmp_path / "quiet", workers=2)
    assert_full_temporary_disk(recipe, tree(str(tmp_path / "quiet")), tmp_path, "100k")


@pytest.mark.soak
def test_full_temporary_disk_in_a_whole_run(recipe: Path, quiet: dict[str, str], tmp_path: Path) -> None:
    assert_full_temporary_disk(recipe, quiet, tmp_path, "100k")


TAKE_SCRATCH = """
import sys
from pathlib import Path

import numpy as np

from datakit.dedup.verification.run_kernels import scratch_array
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


def test_full_scratch_is_an_error_not_a_signal(tmp_path: Path) -> None:
    setup = 'import fsspec; fsspec.filesystem("memory").pipe_file("/file", bytes(8 << 20))'
    disk = tmp_path / "disk"
    script = 'TMPDIR="$DISK" "$@"'
    done = on_a_disk(disk, script, sys.executable, "-c", setup + TAKE_SCRATCH, disk, SIZE="1m")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stderr
    assert all(f"on the temporary disk ({disk})" in line and "set TMPDIR" in line for line in lines)


@pytest.mark.parametrize("temporary", [False, True])
def test_run_stops_before_the_disk_is_full(
    recipe: Path, quiet: dict[str, str], tmp_path: Path, temporary: bool
) -> None:
    disk, root = tmp_path / "disk", tmp_path / "root"
    variables = {"TMPDIR": str(disk)} if temporary else {}
    place, size = (root, "1m") if temporary else (disk, "2m")
    codes, said, kept = run_twice(recipe, str(place), tmp_path, size, 1_500_000, **variables)
    assert codes == ["1", "0", "0"], (codes, said)
    assert "1.5 MB must stay free" in said
    assert f"the disk of {tmp_path}/disk" in said and ("set TMPDIR" if temporary else "choose another --root") in said
    assert "no space left" not in said, "the disk was never full"
    assert tree(str(root if temporary else kept)) == quiet
