"""`datakit doctor` on a machine in trouble: real full disks, in a mount namespace.

What the machine does not permit (mounts take root) is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.faults.cluster import ROOT_OF_THE_CODE
from tests.support.faults.mounts import on_a_disk

DOCTOR = (sys.executable, "-m", "datakit", "doctor", "--json")
SPARSE_DISK = (
    'truncate -s 40G "$DISK.image"'
    ' && mkfs.ext4 -q -m 0 -N 1000 -O ^has_journal -E lazy_itable_init=1,nodiscard "$DISK.image"'
    ' && mount -o loop "$DISK.image"'
)


def problems(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The findings by check, once the exit code was seen to agree with them."""
    assert done.stdout, done.stderr
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    ill = any(finding["state"] == "problem" for finding in findings.values())
    assert done.returncode == (2 if ill else 0)
    assert all(finding["next_step"] for finding in findings.values() if finding["state"] != "ok")
    return findings


def test_a_temporary_disk_over_90_percent_is_a_warning_with_room_and_a_problem_without(tmp_path: Path) -> None:
    fill = 'rm "$DISK.image"; fallocate -l {} "$DISK/fill" && TMPDIR="$DISK" "$@"'
    nearly = problems(on_a_disk(tmp_path / "a", fill.format("36G"), *DOCTOR, mount=SPARSE_DISK))["temporary disk"]
    assert nearly["state"] == "warning" and "% full" in nearly["message"] and "TMPDIR" in nearly["next_step"]
    full = problems(on_a_disk(tmp_path / "b", fill.format("39G"), *DOCTOR, mount=SPARSE_DISK))["temporary disk"]
    assert full["state"] == "problem" and f"{tmp_path}/b: " in full["message"]


def test_a_temporary_disk_without_a_byte_left_is_found_though_python_takes_another(tmp_path: Path) -> None:
    fill = 'head -c 2m /dev/zero > "$DISK/fill"; TMPDIR="$DISK" "$@"'
    found = problems(on_a_disk(tmp_path / "disk", fill, *DOCTOR, SIZE="1m"))["temporary disk"]
    assert found["state"] == "problem" and f"{tmp_path}/disk: 100% full" in found["message"]


def test_a_tmpdir_that_is_not_there_is_found(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ROOT_OF_THE_CODE, "TMPDIR": str(tmp_path / "nowhere")}
    done = subprocess.run(DOCTOR, env=environment, capture_output=True, text=True, check=False, timeout=60)
    found = problems(done)["temporary disk"]
    assert found["state"] == "problem" and "nowhere, which cannot be written" in found["message"]


def test_a_full_disk_under_the_root_is_found(tmp_path: Path) -> None:
    fill = 'head -c 900k /dev/zero > "$DISK/fill"; "$@" --root "$DISK/root"'
    found = problems(on_a_disk(tmp_path / "disk", fill, *DOCTOR, SIZE="1m"))["root's disk"]
    assert found["state"] == "problem" and "another --root" in found["next_step"]
