"""Runs a recipe, simulates it with the corpus measured in that run, and compares the two.

    python -m benchmarks.simulated_run RECIPE --root DIR [--workers 2] [--speed FACTOR]

Prints, for each stage and phase, the tasks, the written files and the CPU-seconds of the real and of the simulated run,
and then the time from the first task to the last and the driver's memory. `reads` are requests of the simulated run; a
run on a disk does not count them. The rates of the simulator are those of one machine: `--speed 1.5` multiplies the
simulated CPU-seconds by 1.5. The last line is the CPU time of the whole process tree. An existing root is compared
without running the recipe again, but then the driver's memory and this CPU time are unknown.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from datakit.engine.ledger.ledger import AttemptLine, PhaseLine, read_ledger
from datakit.pipeline.graph import build
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.pipeline.simulate import rates
from datakit.pipeline.simulate.clock import Cluster
from datakit.pipeline.simulate.figures import Simulation
from datakit.pipeline.simulate.measured import measure
from datakit.pipeline.simulate.simulation import simulate_graph
from datakit.recipe import load_recipe
from datakit.storage.manifest import read_manifest


@dataclass
class Counts:
    """The tasks, written files and CPU-seconds of a phase, in all sources together."""

    tasks: int = 0
    files: int = 0
    cpu: float = 0.0


Phases = dict[tuple[str, str], Counts]  # by stage and phase


def run(recipe: Path, root: Path, workers: int) -> int:
    """Run the recipe. Return the driver's peak resident memory in bytes."""
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), "--workers", str(workers)]
    driver, peak = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), 0
    while driver.poll() is None:
        peak = max(peak, _status(Path(f"/proc/{driver.pid}/status").read_text(), "VmHWM"))
        time.sleep(0.1)
    if driver.returncode:
        raise subprocess.CalledProcessError(driver.returncode, command)
    return peak


def _status(text: str, name: str) -> int:
    """Return a size, in bytes, from the text of /proc/PID/status; 0 if the process is ending."""
    sizes = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")]
    return int(sizes[0]) << 10 if sizes else 0


def real(steps: list[str]) -> tuple[Phases, float]:
    """Return the counts of the real run, and the seconds from the start of the first task to the end of the last."""
    found, first, last = defaultdict[tuple[str, str], Counts](Counts), float("inf"), 0.0
    for directory in steps:
        stage = read_manifest(directory).stage
        for line in read_ledger(directory):
            if isinstance(line, PhaseLine):
                found[stage, line.phase].tasks += len(line.keys)
            elif isinstance(line, AttemptLine):
                counts = found[stage, line.phase]
                counts.cpu += line.cpu_seconds
                counts.files += len(line.result.outputs) if line.result is not None else 0
                first, last = min(first, line.time - line.seconds), max(last, line.time)
    return found, last - first


def simulated(figures: Simulation) -> Phases:
    """Return the counts of a simulated run."""
    found = defaultdict[tuple[str, str], Counts](Counts)
    for phase in (phase for step in figures.steps for phase in step.phases):
        counts = found[phase.stage, phase.phase]
        counts.tasks, counts.files, counts.cpu = (
            counts.tasks + phase.tasks, counts.files + phase.files, counts.cpu + phase.cpu_seconds,
        )  # fmt: skip
    return found


def simulate(recipe: Path, steps: list[str], workers: int, speed: float) -> Simulation:
    """Simulate the recipe on the text of the finished steps."""
    scaled = {name: rate._replace(fixed=speed * rate.fixed, per_mb=speed * rate.per_mb)
              for name, rate in rates.RATES.items()}  # fmt: skip
    rates.RATES.update(scaled)
    with tempfile.TemporaryDirectory() as empty:
        graph = build(load_recipe(str(recipe)), empty, ListingOptions(dry_run=True))
        cluster = dataclasses.replace(Cluster(1, workers), latency=0.0, request_seconds=0.0)
        return simulate_graph(graph, measure(steps), cluster)


def main() -> None:
    """Run, simulate and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--speed", type=float, default=1.0)
    options = parser.parse_args()
    driver = 0 if options.root.exists() else run(options.recipe, options.root, options.workers)
    steps = [str(path.parent) for path in sorted(options.root.rglob("manifest.json"))]
    found = simulate(options.recipe, steps, options.workers, options.speed)
    phases, seconds = real(steps)
    print(table(phases, simulated(found)))
    reads = sum(phase.reads for step in found.steps for phase in step.phases)
    print(f"\ntext: {found.text_bytes / 1e6:,.1f} MB; simulated reads: {reads:,}")
    print(f"first to last task: {seconds:.1f} s, simulated {found.seconds:.1f} s ({found.seconds / seconds:.2f})")
    if driver:
        print(f"driver: {driver / 1e6:.1f} MB, simulated {found.driver_memory / 1e6:.1f} MB "
              f"({found.driver_memory / driver:.2f})")  # fmt: skip
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = usage.ru_utime + usage.ru_stime
        print(f"process tree: {cpu:.1f} CPU s, {1e9 * cpu / found.text_bytes:.1f} ms per MB of text")


def table(phases: Phases, expected: Phases) -> str:
    """Render both runs as Markdown."""
    lines = ["| stage, phase | tasks | simulated | files | simulated | CPU s | simulated |", "|---|" + "--:|" * 6]
    for place in sorted({*phases, *expected}):
        one, other = phases.get(place, Counts()), expected.get(place, Counts())
        mark = "" if (one.tasks, one.files) == (other.tasks, other.files) else " (differs)"
        lines.append(f"| {', '.join(place)}{mark} | {one.tasks:,} | {other.tasks:,} | {one.files:,} | {other.files:,} "
                     f"| {one.cpu:.2f} | {other.cpu:.2f} |")  # fmt: skip
    cpu = [sum(counts.cpu for counts in which.values()) for which in (phases, expected)]
    return "\n".join([*lines, f"| all | | | | | {cpu[0]:.1f} | {cpu[1]:.1f} |"])


if __name__ == "__main__":
    main()
