"""`datakit doctor` reports real faults of a machine: limits, caches, and full disks in a mount namespace.

Tests of what this machine does not permit (mounts may require root) are skipped.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.doctor import machine
from datakit.doctor.finding import State
from tests.support.command_line import command
from tests.support.faults.cluster import ROOT_OF_THE_CODE
from tests.support.faults.doctor import DOCTOR, findings_of
from tests.support.faults.mounts import on_a_disk

SPARSE_DISK = (
    'truncate -s 40G "$DISK.image"'
    ' && mkfs.ext4 -q -m 0 -N 1000 -O ^has_journal -E lazy_itable_init=1,nodiscard "$DISK.image"'
    ' && mount -o loop "$DISK.image"'
)


def test_a_healthy_machine_has_no_problem(tmp_path: Path) -> None:
    shown = command("doctor", "--root", tmp_path / "not-yet", "--json", cwd=tmp_path)
    answer = json.loads(shown.stdout)
    assert shown.returncode == 0 and answer["healthy"], shown.stdout
    checks = {finding["check"] for finding in answer["findings"]}
    assert checks >= {"libraries", "temporary disk", "memory", "open files", "compiled kernels", "root", "root's disk"}
    assert "bytes written" in checks
    assert list(tmp_path.iterdir()) == [], "it leaves nothing"


def test_problems_show_a_next_step_and_exit_with_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = command("doctor", "--root", tmp_path / "file", cwd=tmp_path)
    assert shown.returncode == 2
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("problem"))
    assert "is not a directory" in line and "; next: " in line


def test_a_low_limit_of_open_files_is_a_problem() -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from datakit.doctor.machine import open_files
print(open_files().state)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "problem"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100


def test_an_unwritable_kernel_cache_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    finding = machine.kernel_cache()
    assert finding.state is State.PROBLEM and "NUMBA_CACHE_DIR" in finding.next_step


def test_nearly_full_disks_warn_and_full_ones_fail(tmp_path: Path) -> None:
    fill = 'rm "$DISK.image"; fallocate -l {} "$DISK/fill" && TMPDIR="$DISK" "$@"'
    nearly = findings_of(on_a_disk(tmp_path / "a", fill.format("36G"), *DOCTOR, mount=SPARSE_DISK))["temporary disk"]
    assert nearly["state"] == "warning" and "% full" in nearly["message"] and "TMPDIR" in nearly["next_step"]
    full = findings_of(on_a_disk(tmp_path / "b", fill.format("39G"), *DOCTOR, mount=SPARSE_DISK))["temporary disk"]
    assert full["state"] == "problem" and f"{tmp_path}/b: " in full["message"]


def test_a_tmpdir_without_a_free_byte_is_a_problem(tmp_path: Path) -> None:
    """Python would silently use another directory."""
    fill = 'head -c 2m /dev/zero > "$DISK/fill"; TMPDIR="$DISK" "$@"'
    found = findings_of(on_a_disk(tmp_path / "disk", fill, *DOCTOR, SIZE="1m"))["temporary disk"]
    assert found["state"] == "problem" and f"{tmp_path}/disk: 100% full" in found["message"]


def test_a_missing_tmpdir_is_a_problem(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ROOT_OF_THE_CODE, "TMPDIR": str(tmp_path / "nowhere")}
    done = subprocess.run(DOCTOR, env=environment, capture_output=True, text=True, check=False, timeout=120)
    found = findings_of(done)["temporary disk"]
    assert found["state"] == "problem" and "nowhere, which cannot be written" in found["message"]
