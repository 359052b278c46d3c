"""Many runs, in one process or one after the other, leave no descriptors, threads, processes or files behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.faults.mounts import on_a_disk

PROGRAM = '"$PYTHON" -P -m tests.support.engine.repeated_runs "$@"'
SHARED_MEMORY = Path("/dev/shm")


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("api", 7),
        pytest.param("api", 50, marks=pytest.mark.soak),
        pytest.param("command", 200, marks=pytest.mark.soak),
    ],
)
def test_repeated_runs_leave_nothing_behind(tmp_path: Path, kind: str, times: int) -> None:
    (tmp_path / "temporary").mkdir()
    folders = {"TMPDIR": str(tmp_path / "temporary"), "RUNS_FOLDER": str(tmp_path)}
    done = on_a_disk(SHARED_MEMORY, PROGRAM, kind, str(times), seconds=3600, SIZE="64m", **folders)
    assert done.stdout, done.stderr
    print(done.stdout.rpartition("{")[0])
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["grown"], done.returncode) == ([], 0), done.stdout
