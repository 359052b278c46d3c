"""Runs a recipe, samples the memory of every process of the run, and prints the peaks.

    python -m benchmarks.run_memory RECIPE --root DIR [--workers 2] [--seconds 0.1]

The memory of a process is its PSS: pages that several processes share are divided among them. An attempt shares most
pages of its fork server, so its resident memory, which the second table states for each stage, is larger. Reading the
PSS takes about a millisecond of CPU time per process, so do not measure CPU time in the same run. A peak between two
samples is not seen; the resident memory is that of the operating system's accounting, which misses none.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.storage.manifest import read_manifest

DRIVER, SERVERS, ATTEMPTS = "driver", "fork servers and their template", "attempts"


def pss(pid: int) -> int:
    """Return the PSS of a process in bytes; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def sample(driver: psutil.Process) -> dict[int, tuple[str, int]]:
    """Return the kind and the PSS of the driver and of its descendants, by process id."""
    with suppress(psutil.NoSuchProcess):
        below = {one.pid: one.ppid() for one in driver.children(recursive=True) if one.is_running()}
        servers = {*below.values()} | {pid for pid, parent in below.items() if parent == driver.pid}
        # a server without children at this moment is a child of the template, which is a child of the driver
        servers |= {pid for pid, parent in below.items() if below.get(parent) == driver.pid}
        kinds = {pid: SERVERS if pid in servers else ATTEMPTS for pid in below} | {driver.pid: DRIVER}
        return {pid: (kind, pss(pid)) for pid, kind in kinds.items()}
    return {}


def peaks(command: list[str], seconds: float) -> dict[str, int]:
    """Run a command; return the peak PSS, in bytes, of a single process of each kind."""
    started, found = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), dict[str, int]()
    driver = psutil.Process(started.pid)
    while started.poll() is None:
        for kind, size in sample(driver).values():
            found[kind] = max(found.get(kind, 0), size)
        time.sleep(seconds)
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, command)
    return found


def stages(root: Path) -> dict[str, tuple[int, int]]:
    """Return the number of attempts of each stage, and the largest resident memory of one of them in bytes."""
    found = defaultdict[str, list[int]](list)
    for path in root.rglob("manifest.json"):
        lines = [line for line in read_ledger(str(path.parent)) if isinstance(line, AttemptLine)]
        found[read_manifest(str(path.parent)).stage] += [line.peak_resident for line in lines]
    return {stage: (len(sizes), max(sizes)) for stage, sizes in sorted(found.items()) if sizes}


def main() -> None:
    """Run the recipe and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="time between two samples")
    options = parser.parse_args()
    command = [sys.executable, "-m", "datakit", "run", str(options.recipe), "--root", str(options.root),
               "--workers", str(options.workers)]  # fmt: skip
    found = peaks(command, options.seconds)
    print("| process | largest PSS, MiB |\n|---|--:|")
    for kind in (DRIVER, SERVERS, ATTEMPTS):
        print(f"| {kind} | {found.get(kind, 0) / (1 << 20):.0f} |")
    print("\n| stage | attempts | largest resident memory, MiB |\n|---|--:|--:|")
    for stage, (count, size) in stages(options.root).items():
        print(f"| {stage} | {count} | {size / (1 << 20):.0f} |")


if __name__ == "__main__":
    main()
