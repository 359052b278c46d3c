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
    alive, dead = (
        stale_files.scratch_directory(),
        tmp_path / f"datakit-scratch-{atomic.process_space()}-{dead_process()}-x",
    )
    dead.mkdir()
    elsewhere = tmp_path / f"datakit-scratch-other.host.1-{dead_process()}-x"
    elsewhere.mkdir()
    (dead / "spill").write_bytes(bytes(100))
    staged = tmp_path / temporary_name_of(dead_process())
    staged.touch()
    assert sorted(stale_files.remove_dead_scratch()) == sorted([dead, staged])
    assert sorted(tmp_path.iterdir()) == sorted([alive, elsewhere])


def test_files_of_another_container_with_our_host_name_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ids mean other processes, so an id that is free here may be in use there."""
    ours = atomic.process_space()
    path = tmp_path / temporary_name_of(dead_process())
    path.touch()
    host, boot, namespace = ours.rsplit(".", 2)
    for other in (f"{host}.{boot}.{int(namespace) + 1}", f"{host}.00000000.{namespace}", host):
        monkeypatch.setattr(atomic, "process_space", lambda other=other: other)
        assert stale_files.remove_dead_files(str(tmp_path)) == []
    monkeypatch.setattr(atomic, "process_space", lambda: ours)
    assert stale_files.remove_dead_files(str(tmp_path)) == [path]
