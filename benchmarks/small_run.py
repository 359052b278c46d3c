"""Runs a recipe of two small sources with `datakit run`, each time in an empty directory, and prints the CPU time of
the whole process tree and the wall-clock time: what a run costs however little text there is.

    python -m benchmarks.small_run [--rounds N] [--workers N] [--tokenizer FILE]

By default, the tokenizer is the OLMo v1.5 tokenizer in $DATAKIT_DATA or, if it is not set, in `shared/data` beside the
checkout. One run before the first round compiles the kernels, if this machine has not run them yet.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.process_tree import Usage, measured
from tests.support.data import data_dir
from tests.support.small_shelf import make_shelf

TOKENIZER = "tokenizers/gpt-neox-olmo-dolma-v1_5.json"
TRAINED = 'tokenizer = "train"\n\n[tokenize.train]\nvocabulary = 400\n'


def one_run(recipe: Path, workers: int) -> Usage:
    """Run the recipe in a new root."""
    with tempfile.TemporaryDirectory(prefix="datakit-small-") as folder:
        command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", f"{folder}/root"]
        return measured([*command, "--workers", str(workers)], Path(folder) / "run.log")


def main() -> None:
    """Run the rounds and print the medians with their ranges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path)
    arguments = parser.parse_args()
    tokenizer = arguments.tokenizer or data_dir() / TOKENIZER
    with tempfile.TemporaryDirectory(prefix="datakit-small-") as folder:
        recipe = make_shelf(Path(folder))
        recipe.write_text(recipe.read_text().replace(TRAINED, f'tokenizer = "{tokenizer.resolve()}"\n'))
        one_run(recipe, arguments.workers)
        rounds = [one_run(recipe, arguments.workers) for _ in range(arguments.rounds)]
    for name, values in {"CPU": [run.cpu for run in rounds], "wall-clock": [run.wall for run in rounds]}.items():
        print(f"{name} s: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
