"""Measures the rates of `datakit/pipeline/simulate/rates.py` in finished runs of a recipe, and prints them.

    python -m benchmarks.task_rates RECIPE=ROOT [RECIPE=ROOT ...]

Each run must have its recipe, a local root and no failed attempts; `python -m benchmarks.simulated_run` makes such
runs. Give runs of several sizes, so that the fixed part of a rate and the part per MB can be told apart. Each run is
simulated with the corpus measured in it, which tells the function of each task and how much of its input takes time.
The CPU time of each task comes from the ledgers. For each function, a line is fitted to the CPU-seconds of its tasks,
and then scaled so that their sum is exact. The last lines state what an attempt takes besides the CPU time of its child
(waiting for the disk, the driver and the other slots): on an idle machine, this is ATTEMPT_SECONDS.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datakit.engine.executor import Attempt
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.pipeline.graph import build
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.pipeline.simulate.clock import Cluster, Spent
from datakit.pipeline.simulate.measured import measure
from datakit.pipeline.simulate.rates import MEGABYTE, RATES
from datakit.pipeline.simulate.simulation import simulate_graph
from datakit.recipe import load_recipe
from datakit.storage.manifest import read_manifest

LEAST = 0.001  # CPU-seconds: no task takes less

Place = tuple[str, str, str, str]  # stage, dataset, phase, key of the task


@dataclass(frozen=True)
class Point:
    """A task: the MB of its input that take time, its measured CPU-seconds, and those of the present rates."""

    megabytes: float
    cpu: float
    simulated: float


def attempts(directories: list[str]) -> dict[Place, AttemptLine]:
    """Return the attempts of all steps."""
    found: dict[Place, AttemptLine] = {}
    for directory in directories:
        stage, dataset = read_manifest(directory).stage, Path(directory).parent.name
        lines = [line for line in read_ledger(directory) if isinstance(line, AttemptLine)]
        found |= {(stage, dataset, line.phase, line.key): line for line in lines}
    return found


def points(recipe: str, root: Path) -> tuple[dict[str, list[Point]], list[AttemptLine]]:
    """Return the tasks of a run by function, and its attempts."""
    directories = [str(path.parent) for path in sorted(root.rglob("manifest.json"))]
    lines, found = attempts(directories), defaultdict[str, list[Point]](list)

    def notice(attempt: Attempt, spent: Spent) -> None:
        place = (attempt.stage, Path(attempt.step_directory).parent.name, attempt.phase, spent.task.key)
        work = spent.task.input_bytes if spent.effect.work is None else spent.effect.work
        if place in lines:  # the simulation may divide the partitions among tasks in another way
            point = Point(work / MEGABYTE, lines[place].cpu_seconds, spent.cpu_seconds)
            found[spent.task.function].append(point)

    with tempfile.TemporaryDirectory() as empty:
        graph = build(load_recipe(recipe), empty, ListingOptions(dry_run=True))
        simulate_graph(graph, measure(directories), Cluster(1, 2, request_seconds=0.0), notice=notice)
    return found, list(lines.values())


def fitted(tasks: list[Point]) -> tuple[float, float]:
    """Return the CPU-seconds of a task without input, and per MB. Neither is negative."""
    work, cpu = np.array([one.megabytes for one in tasks]), np.array([one.cpu for one in tasks])
    if not work.any():
        return float(cpu.mean()), 0.0
    slope = float(np.polyfit(work, cpu, 1)[0]) if np.ptp(work) > 0.2 * work.mean() else 0.0
    fixed = max(LEAST, float(cpu.mean() - slope * work.mean())) if slope > 0 else LEAST  # 0: the sizes tell nothing
    return fixed, max(0.0, float((cpu - fixed).sum() / work.sum()))


def main() -> None:
    """Print the rates of all functions that occur in the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RECIPE=ROOT")
    options = parser.parse_args()
    tasks, others = defaultdict[str, list[Point]](list), list[float]()
    for text in options.runs:
        recipe, _, root = text.partition("=")
        found, lines = points(recipe, Path(root))
        others += [line.seconds - line.cpu_seconds for line in lines]
        for function, these in found.items():
            tasks[function] += these
    print("| function | tasks | MB | CPU s | with the present rates | fixed | per MB |\n|---|" + "--:|" * 6)
    for function in filter(tasks.__contains__, RATES):
        these = tasks[function]
        megabytes, cpu, present = (
            sum(getattr(one, name) for one in these) for name in ("megabytes", "cpu", "simulated")
        )
        fixed, slope = fitted(these)
        print(f"| {function.removeprefix('datakit.')} | {len(these):,} | {megabytes:,.1f} | {cpu:.2f} | {present:.2f} "
              f"| {fixed:.3f} | {slope:.4f} |")  # fmt: skip
    print(
        f"\nan attempt takes {statistics.mean(others):.4f} s (median {statistics.median(others):.4f} s) besides its CPU"
    )


if __name__ == "__main__":
    main()
