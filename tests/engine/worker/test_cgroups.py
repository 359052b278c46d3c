"""A control group with little memory, wherever it is in the tree: seen by `datakit doctor`, and kept to by a run.

Real groups, where they can be made (it takes root); and copies of the files that kernels show in other places.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit.engine.worker import cgroups
from tests.doctor.test_doctor_machine import DOCTOR, problems
from tests.support.faults.cluster import ROOT_OF_THE_CODE, wait_until

LIMIT = 512 << 20
BOMB = """
import sys
from pathlib import Path
from datakit.errors import PartialError
from tests.support.engine.poison_tasks import digests
from tests.support.engine.runs import attempts, run

try:
    run(Path(sys.argv[1]), digests(6, {7: "bomb"}, memory_bytes=4 << 30))
except PartialError:
    print({(line.cause.value, line.budget < 512 << 20) for line in attempts(Path(sys.argv[1])) if line.key == "00000"})
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of half a GiB below our own, of whichever version this machine has."""
    groups = [place for place in cgroups.memory_groups() if (place / "cgroup.procs").exists()]
    group = groups[0] / f"datakit-{uuid.uuid4().hex[:8]}" if groups else Path("/nowhere")
    try:
        group.mkdir()
        next(group / name for name in cgroups.LIMIT_FILES if (group / name).exists()).write_text(str(LIMIT))
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group can be made here: {error!r}")
    yield group
    assert wait_until(lambda: not (group / "cgroup.procs").read_text(), 20), "processes are left in it"
    group.rmdir()


def run_inside(group: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """A command in a group."""
    whole = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    environment = {**os.environ, "PYTHONPATH": ROOT_OF_THE_CODE}
    return subprocess.run(whole, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_small_group_is_found_by_the_doctor(small_group: Path) -> None:
    found = problems(run_inside(small_group, DOCTOR))["memory"]
    assert found["state"] == "problem" and found["message"].startswith("0.5 GiB for this process"), found
    assert "container" in found["next_step"]


def test_a_memory_bomb_in_a_small_group_is_known_for_one_whoever_kills_it(small_group: Path, tmp_path: Path) -> None:
    done = run_inside(small_group, (sys.executable, "-c", BOMB, str(tmp_path)))
    assert done.stdout == "{('memory', True)}\n", done.stdout + done.stderr


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
    monkeypatch.setattr(cgroups, "PROCESS_GROUPS", shown)
    monkeypatch.setattr(cgroups, "MOUNT", mount)
    assert min(cgroups.memory_limits()) == 1000
