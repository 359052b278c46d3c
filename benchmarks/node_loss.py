"""Lose a node in the middle of every phase of the real run (two nodes, root on S3); the bytes must not change.

    python -m benchmarks.node_loss [--phases sort,encode] [--latency 0.05]

The recipe is that of `benchmarks.full_run` (13 files, 121 MB, 8 sources). After an undisturbed run comes one run per
phase in which a node dies with half of the phase's attempts done and one running, and finally one run that loses a node
in every phase. Prints one line per run and exits with 1 if bytes differ, a phase could not be hit, or no attempt was
lost. `tests/support/faults/node_loss.py` says how a node is lost. The server delays each read by `--latency` seconds,
as a remote one does, which also makes short phases long enough to hit. A run takes a minute or two on 2 cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.data import corpus_recipe
from tests.support.faults.node_loss import Run, Workers, run, workers
from tests.support.s3 import s3_root

TRIES = 3  # a phase may end before the chosen moment; then the next attempt uses the first task it sees


def shaken(recipe: Path, cluster: Workers, latency: float, strikes: Mapping[str, int], tries: int = TRIES) -> Run:
    """Run in a fresh root, again if a phase could not be hit."""
    with s3_root(latency=latency) as root:
        result = run(recipe, root, cluster, strikes)
    missed = strikes.keys() - set(result.struck)
    if not missed or tries == 1:
        return result
    earlier = {phase: 1 if phase in missed else number for phase, number in strikes.items()}
    return shaken(recipe, cluster, latency, earlier, tries - 1)


def line(name: str, result: Run, strikes: Mapping[str, int], quiet: Run) -> tuple[bool, str]:
    """(success, the line to print)."""
    missed = sorted(strikes.keys() - set(result.struck))
    troubles = result.troubles(quiet) + [f"phase {phase} could not be struck" for phase in missed]
    verdict = "TROUBLE: " + "; ".join(troubles) if troubles else "same bytes"
    nodes, lost = len(result.struck), sum(result.lost.values())
    return not troubles, f"{name:24} {result.seconds:6.1f} s, nodes lost {nodes}, attempts lost {lost}: {verdict}"


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", default="", help="comma-separated phases; all by default")
    parser.add_argument("--latency", type=float, default=0.05)
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="datakit-node-loss-") as folder, workers(Path(folder)) as cluster:
        recipe = corpus_recipe(Path(folder))
        with s3_root(latency=options.latency) as root:
            quiet = run(recipe, root, cluster)
        print(f"undisturbed: {quiet.seconds:.1f} s, {len(quiet.tree)} files", flush=True)
        half = {phase: max(1, quiet.seen[phase] // 2) for phase in quiet.phases}
        wanted = options.phases.split(",") if options.phases else list(half)
        rounds = {"/".join((quiet.phases[phase][0], phase)): {phase: half[phase]} for phase in wanted}
        for name, strikes in {**rounds, "all of them in one run": {phase: half[phase] for phase in wanted}}.items():
            result = shaken(recipe, cluster, options.latency, strikes)
            well, text = line(name, result, strikes, quiet)
            print(text, flush=True)
            good &= well
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
