"""Only files of dead processes of this host are removed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from datakit.storage import atomic, stale_files


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def temporary_name_of(pid: int) -> str:
    return atomic.temporary_name("file").replace(f"-{os.getpid()}-", f"-{pid}-")


def test_only_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    dead = [tmp_path / temporary_name_of(dead_process()), tmp_path / "below" / temporary_name_of(dead_process())]
    other_host = tmp_path / dead[0].name.replace(os.uname().nodename.replace("-", "_"), "elsewhere")
    kept = [tmp_path / atomic.temporary_name("file"), other_host, tmp_path / "part.parquet"]
    for path in (*dead, *kept):
        path.touch()
    assert stale_files.remove_dead_files_in(str(tmp_path)) == dead[:1]
    assert stale_files.remove_dead_files(str(tmp_path)) == dead[1:]
    assert all(path.exists() for path in kept)


def test_only_scratch_of_dead_processes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive, dead = stale_files.scratch_directory(), tmp_path / f"datakit-scratch-{dead_process()}-x"
    dead.mkdir()
    (dead / "spill").write_bytes(bytes(100))
    staged = tmp_path / temporary_name_of(dead_process())
    staged.touch()
    assert sorted(stale_files.remove_dead_scratch()) == sorted([dead, staged])
    assert list(tmp_path.iterdir()) == [alive]
