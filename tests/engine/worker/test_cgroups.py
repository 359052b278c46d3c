"""The memory limit of a control group is found anywhere in the tree, and runs inside a small group obey it.

Uses real groups if they can be created (that requires root), and copies of the files that other kernels show.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from datakit.engine.worker import cgroups
from tests.support.faults.cluster import ROOT_OF_THE_CODE, wait_until
from tests.support.faults.doctor import DOCTOR, findings_of

LIMIT = 512 << 20
BOMB = """
import sys
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import PartialError
from tests.support.engine.poison_tasks import digests, poison_step

executor, step = LocalExecutor(2), poison_step(sys.argv[1])
plan = digests(6, {7: "bomb"}, memory_bytes=4 << 30, hang_seconds=600.0)
try:
    run_step(step, plan, lambda: executor, Observer())
except PartialError:
    lines = [line for line in read_ledger(sys.argv[1]) if isinstance(line, AttemptLine) and line.key == "00000"]
    print({(line.cause.value, line.budget < 512 << 20) for line in lines})
finally:
    executor.close()
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of half a GiB below our own, of the version that this machine has."""
    groups = [folder for folder in cgroups.memory_groups() if (folder / "cgroup.procs").exists()]
    group = groups[0] / f"datakit-{uuid.uuid4().hex[:8]}" if groups else Path("/nowhere")
    try:
        group.mkdir()
        next(group / name for name in cgroups.LIMIT_FILES if (group / name).exists()).write_text(str(LIMIT))
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group can be created here: {error!r}")
    yield group
    assert wait_until(lambda: not (group / "cgroup.procs").read_text(), 60), "processes are left in it"
    group.rmdir()


def run_inside(group: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command in a group."""
    whole = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    environment = {**os.environ, "PYTHONPATH": ROOT_OF_THE_CODE}
    return subprocess.run(whole, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_doctor_reports_a_small_group(small_group: Path) -> None:
    found = findings_of(run_inside(small_group, DOCTOR))["memory"]
    assert found["state"] == "problem" and found["message"].startswith("0.5 GB for this process"), found
    assert "container" in found["next_step"]


def test_memory_bombs_in_a_small_group_count_as_memory(small_group: Path, tmp_path: Path) -> None:
    """The plan's usual hang limit of 1 s must not apply: a busy machine takes longer to fill 435 MiB."""
    done = run_inside(small_group, (sys.executable, "-c", BOMB, str(tmp_path)))
    assert done.stdout == "{('memory', True)}\n", done.stdout + done.stderr


def fake_kernel(tmp_path: Path, files: dict[str, str], process_groups: str) -> tuple[Path, Path]:
    """Write copies of what a kernel shows as /proc/self/cgroup and /sys/fs/cgroup; returns their paths."""
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text)
    (tmp_path / "groups").write_text(process_groups)
    return tmp_path / "groups", tmp_path / "mount"


@pytest.mark.parametrize(
    ("files", "process_groups"),
    [
        ({"memory.max": "max\n", "a/memory.max": "1000\n", "a/b/memory.max": "max\n"}, "0::/a/b\n"),
        ({"memory.max": "1000\n"}, "0::/the/path/on/the/host\n"),
        ({"memory/a/memory.limit_in_bytes": "1000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"},
         "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n"),
        ({"memory/memory.limit_in_bytes": "1000\n"}, "4:memory:/docker/123\n"),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 in a container"],
)  # fmt: skip
def test_the_smallest_limit_of_all_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], process_groups: str
) -> None:
    shown, mount = fake_kernel(tmp_path, files, process_groups)
    monkeypatch.setattr(cgroups, "PROCESS_GROUPS", shown)
    monkeypatch.setattr(cgroups, "MOUNT", mount)
    assert min(cgroups.group_limits()) == 1000


def test_kills_are_counted_in_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a/memory.events": "oom 7\noom_kill 2\noom_group_kill 0\n", "memory/b/memory.oom_control":
             "under_oom 1\noom_kill 30\n", "vmstat": "nr_free 5\noom_kill 400\nthp 9\n"}  # fmt: skip
    shown, mount = fake_kernel(tmp_path, files, "4:memory:/b\n0::/a\n")
    monkeypatch.setattr(cgroups, "PROCESS_GROUPS", shown)
    monkeypatch.setattr(cgroups, "MOUNT", mount)
    monkeypatch.setattr(cgroups, "VMSTAT", mount / "vmstat")
    monkeypatch.setattr(cgroups, "_kill_files", cache(cgroups._kill_files.__wrapped__))
    assert cgroups.kernel_kills() == 432
    (mount / "a/memory.events").write_text("oom 8\noom_kill 3\n")
    assert cgroups.kernel_kills() == 433
    (mount / "a/memory.events").unlink()
    assert cgroups.kernel_kills() == 430, "a process that is moved to another group goes on"
