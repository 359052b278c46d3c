"""`datakit doctor` finds what is really wrong: each fault here is a real one."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.doctor import machine
from datakit.doctor.finding import Finding, State
from datakit.doctor.machine import examine
from tests.support.s3 import s3_root
from tests.support.small_shelf import command


def found(root: str | None = None, ray: str | None = None) -> dict[str, Finding]:
    """By check."""
    return {finding.check: finding for finding in examine(root, ray)}


def test_a_healthy_machine_with_a_healthy_root_has_no_problem(tmp_path: Path) -> None:
    shown = command("doctor", "--root", tmp_path / "not-yet", "--json", cwd=tmp_path)
    answer = json.loads(shown.stdout)
    assert shown.returncode == 0 and answer["healthy"], shown.stdout
    checks = {finding["check"] for finding in answer["findings"]}
    assert checks >= {"libraries", "temporary disk", "memory", "open files", "compiled kernels", "root", "root's disk"}
    assert list(tmp_path.iterdir()) == [], "it leaves nothing"


def test_a_problem_is_a_line_with_the_next_step_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = command("doctor", "--root", tmp_path / "file", cwd=tmp_path)
    assert shown.returncode == 2
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("problem"))
    assert "is not a directory" in line and "; next: " in line


def test_a_store_is_tried_for_real() -> None:
    with s3_root() as root:
        checks = found(root)
        assert [checks[name].state for name in ("root", "conditional put", "clock")] == [State.OK] * 3


def test_few_open_files_are_found() -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from datakit.doctor.machine import open_files
print(open_files().state)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "problem"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100


def test_kernels_that_cannot_be_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    finding = machine.kernels_cache()
    assert finding.state is State.PROBLEM and "NUMBA_CACHE_DIR" in finding.next_step


def test_a_stale_address_and_a_token_without_its_mode_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 40)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    checks = found(str(tmp_path), "auto")
    assert checks["ray address"].state is State.PROBLEM and "RAY_ADDRESS" in checks["ray address"].next_step
    assert checks["ray token"].state is State.WARNING
    assert "cluster" not in checks
