"""Runs a recipe whose texts and root are on S3, counts the requests of each task, and compares them with a simulation.

    python -m benchmarks.simulated_requests TEXTS

TEXTS is a directory that `benchmarks/peers/scaled_text.py` has written. The store is moto, behind a proxy that counts;
it holds all files in memory. The tasks run one after another in this process, so that each request belongs to a task.
The requests of the driver (ledgers, manifests, leases) and those for the shared data of a phase are not counted. The
simulation gets the corpus measured in the run. Prints, for each stage and phase, the requests of both that read (GET,
HEAD) and that write (PUT, POST).
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from unittest.mock import patch

import datakit
from benchmarks.peers.compare import Setting
from datakit.engine.executor import Attempt
from datakit.engine.scheduler import run_loop
from datakit.engine.scheduler.background import Inline
from datakit.pipeline import lazy_executor
from datakit.pipeline.graph import build
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.pipeline.simulate.clock import Cluster
from datakit.pipeline.simulate.figures import Simulation
from datakit.pipeline.simulate.measured import measure
from datakit.pipeline.simulate.simulation import simulate_graph
from datakit.recipe import load_recipe
from tests.support.engine.inline_executor import InlineExecutor
from tests.support.faults.faulty_proxy import Proxy, faulty_proxy
from tests.support.s3 import s3_root

READS, WRITES = ("GET", "HEAD"), ("PUT", "POST")
# parts of the paths of files that the driver or the worker reads and writes, not the task
OTHERS = ("/ledger/", "/manifest", "lease", "/exchange/shared/", "/runs/")

Place = tuple[str, str]  # stage and phase
Counts = dict[Place, Counter[str]]


def run(recipe: Path, root: str, proxy: Proxy) -> tuple[datakit.RunResult, Counts]:
    """Run the recipe in this process; return the requests of the tasks by stage, phase and method."""
    found: Counts = defaultdict(Counter)

    class Counting(InlineExecutor):
        def submit(self, attempt: Attempt) -> None:
            first = len(proxy.log)
            super().submit(attempt)
            asked = [method for method, path in proxy.log[first:] if not any(part in path for part in OTHERS)]
            found[attempt.stage, attempt.phase].update(asked)

    with patch.object(lazy_executor, "LocalExecutor", Counting), patch.object(run_loop, "Background", Inline):
        return datakit.run(recipe, root=root), found


def simulated(recipe: Path, result: datakit.RunResult) -> Simulation:
    """Simulate the run on the text that it has read."""
    with tempfile.TemporaryDirectory() as empty:
        graph = build(load_recipe(str(recipe)), empty, ListingOptions(dry_run=True))
        return simulate_graph(graph, measure([step.directory for step in result.steps]), Cluster())


def table(found: Counts, figures: Simulation) -> str:
    """Render both runs as Markdown."""
    expected = defaultdict[Place, Counter[str]](Counter)
    for phase in (phase for step in figures.steps for phase in step.phases):
        expected[phase.stage, phase.phase].update(reads=phase.reads - bool(phase.shared), writes=phase.writes)
    lines = ["| stage, phase | GET | HEAD | reads | simulated | writes | simulated |", "|---|" + "--:|" * 6]
    for place in sorted({*found, *expected}):
        one, other = found.get(place, Counter[str]()), expected[place]
        reads, writes = sum(one[name] for name in READS), sum(one[name] for name in WRITES)
        mark = "" if (reads, writes) == (other["reads"], other["writes"]) else " (differs)"
        lines.append(f"| {', '.join(place)}{mark} | {one['GET']:,} | {one['HEAD']:,} | {reads:,} | {other['reads']:,} "
                     f"| {writes:,} | {other['writes']:,} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Run, simulate and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--log", type=Path, help="write the method and the path of each request to this file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        s3_root(holding=str(options.texts)) as store,
        faulty_proxy(0.0) as proxy,
    ):
        local = Setting(options.texts, Path(scratch) / "root", "", 1).recipe
        recipe = Path(scratch) / "stored.toml"
        recipe.write_text(local.read_text().replace(f'url = "{options.texts}"', f'url = "{store}"'))
        result, found = run(recipe, f"{store}-output", proxy)
        print(table(found, simulated(recipe, result)))
        if options.log:
            options.log.write_text("\n".join(map(" ".join, proxy.log)))


if __name__ == "__main__":
    main()
