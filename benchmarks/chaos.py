"""Repeat a real run under random kills and faults: every round must leave the bytes of an undisturbed run.

    python -m benchmarks.chaos --rounds 50 [--seed 1] [--curated] [--ray] [--keep]

Prints one line per round and a summary. Exits with 1 if a round left different bytes, committed a task twice with
different content, or left a process or temporary file behind. A round takes two to three times as long as the recipe
(5 to 10 s). With `--curated`, the recipe has annotators, rules and edits as well.
`tests/support/faults/chaos.py` says what is killed and checked.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from tests.support.annotate.curated_shelf import write_curated_shelf
from tests.support.faults.chaos import Quiet, Report, run_round
from tests.support.faults.cluster import TwoNodes, two_nodes
from tests.support.stdlib_shelf import write_shelf


def rounds(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Run all rounds and print each report as it ends."""
    quiet = Quiet.run(folder, write_curated_shelf if options.curated else write_shelf)
    print(f"undisturbed: {quiet.seconds:.1f} s, {len(quiet.tree)} files", flush=True)
    reports = []
    with contextlib.ExitStack() as stack:
        private = folder / "private"
        private.mkdir()
        nodes: TwoNodes | None = stack.enter_context(two_nodes(private)) if options.ray else None
        for number in range(options.rounds):
            place = folder / f"round-{number}"
            reports.append(run_round(quiet, place, options.seed + number, nodes))
            print(reports[-1].line(), flush=True)
            if not reports[-1].troubles and not options.keep:
                shutil.rmtree(place)
    return reports


def main() -> int:
    """Run all rounds and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round; later rounds count up from it")
    parser.add_argument("--curated", action="store_true", help="run a recipe with annotators, rules and edits")
    parser.add_argument("--ray", action="store_true", help="run on a cluster of two nodes, which are killed too")
    parser.add_argument("--keep", action="store_true", help="keep the roots of all rounds, not only of failed ones")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="datakit-chaos-"))
    reports = rounds(options, folder)
    good = sum(not report.troubles for report in reports)
    kills = collections.Counter(kind for report in reports for kind in report.kills)
    faults = collections.Counter(fault.split("-")[0] for report in reports for fault in report.faults)
    print(f"{good} of {len(reports)} rounds byte-identical; kills {dict(kills)}; faults {dict(faults)}")
    if good == len(reports) and not options.keep:
        shutil.rmtree(folder)
        return 0
    print(f"kept: {folder}")
    return int(good < len(reports))


if __name__ == "__main__":
    sys.exit(main())
