"""Mounts small disks for a test's processes, in a mount namespace that ends with them.

    done = on_a_disk(tmp_path / "disk", "datakit doctor; echo $?", size="64m")

If the machine does not permit mounts (root or user namespaces are needed), the test is skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults.cluster import ROOT_OF_THE_CODE

NOT_PERMITTED = 77
MEMORY_DISK = 'mount -t tmpfs -o size="$SIZE" tmpfs'


def on_a_disk(
    place: Path,
    script: str,
    *arguments: str | Path,
    mount: str = 'mount -t tmpfs -o size="$SIZE" tmpfs',
    seconds: float = 180,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a shell script, whose `$@` are the arguments, while a disk is mounted at `place` (`$DISK`, `$SIZE`)."""
    place.mkdir(parents=True, exist_ok=True)
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    whole = f'{mount} "$DISK" || exit {NOT_PERMITTED}; {script}'
    environment = {**os.environ, "PYTHONPATH": ROOT_OF_THE_CODE, "COLUMNS": "300", "DISK": str(place), **variables}
    environment["PYTHON"] = sys.executable
    done = subprocess.run(
        [*namespace, "sh", "-c", whole, "sh", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode == NOT_PERMITTED or "unshare" in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    return done
