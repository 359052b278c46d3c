"""`datakit doctor` on a machine in trouble: real full disks, and a real control group with little memory.

What the machine does not permit (mounts and control groups take root) is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datakit.engine import cgroups
from tests.cluster import ROOT_OF_THE_CODE
from tests.mounts import on_a_disk

DOCTOR = (sys.executable, "-m", "datakit", "doctor", "--json")
LIMIT = 512 << 20
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


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of half a GiB below our own, of whichever version this machine has."""
    groups = [place for place in cgroups.folders() if (place / "cgroup.procs").exists()]
    group = groups[0] / f"datakit-{uuid.uuid4().hex[:8]}" if groups else Path("/nowhere")
    try:
        group.mkdir()
        next(group / name for name in cgroups.LIMITS if (group / name).exists()).write_text(str(LIMIT))
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group can be made here: {error!r}")
    yield group
    group.rmdir()


def test_a_small_control_group_is_found_wherever_it_is_in_the_tree(small_group: Path) -> None:
    inside = f'echo $$ > {small_group}/cgroup.procs && exec "$@"'
    environment = {**os.environ, "PYTHONPATH": ROOT_OF_THE_CODE}
    command = ["sh", "-c", inside, "sh", *DOCTOR]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    found = problems(done)["memory"]
    assert found["state"] == "problem" and found["message"].startswith("0.5 GiB for this process"), found
    assert "container" in found["next_step"]


def layout(tmp_path: Path, files: dict[str, str], own: str) -> tuple[Path, Path]:
    """A copy of what a kernel shows: (/proc/self/cgroup, /sys/fs/cgroup)."""
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return tmp_path / "own", tmp_path / "mount"


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"memory.max": "max\n", "a/memory.max": "1000\n", "a/b/memory.max": "max\n"}, "0::/a/b\n"),
        ({"memory.max": "1000\n"}, "0::/the/path/on/the/host\n"),
        ({"memory/a/memory.limit_in_bytes": "1000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"},
         "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n"),
        ({"memory/memory.limit_in_bytes": "1000\n"}, "4:memory:/docker/123\n"),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 in a container"],
)  # fmt: skip
def test_the_smallest_limit_around_the_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], own: str
) -> None:
    shown, mount = layout(tmp_path, files, own)
    monkeypatch.setattr(cgroups, "OWN", shown)
    monkeypatch.setattr(cgroups, "MOUNT", mount)
    assert min(cgroups.memory_limits()) == 1000
