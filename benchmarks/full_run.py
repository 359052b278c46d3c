"""Run the whole pipeline on 121 MB of real text and print wall time, CPU time, throughput and peak memory by stage.

    python -m benchmarks.full_run [--root DIR] [--workers N] [--keep]

The texts are in $DATAKIT_DATA or, if it is not set, in `shared/data` beside the checkout.
Numbers come from the run's own ledgers: each attempt's CPU seconds and peak resident memory as the operating system
accounted them. The last line covers the whole process tree: driver, fork servers with their imports, and all children.
MB are 10^6 bytes of normalized text, before anything was removed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import datakit
from datakit.engine.ledger.ledger import AttemptLine, DriverLine, read_ledger
from datakit.recipe import parse_recipe
from datakit.storage.manifest import read_manifest

RECIPE = Path(__file__).with_name("text_corpus.toml")
BESIDE = "../../shared/data"  # the folder of texts, as the recipe names it
ORDER = ("download", "normalize", "signatures", "dedup", "select", "consolidate", "train-tokenizer", "contract",
         "tokenize")  # fmt: skip


@dataclass
class StageSums:
    """Sums over the steps of one stage; the peak is in bytes."""

    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    rows: int = 0
    tasks: int = 0


def sums_of(root: Path) -> dict[str, StageSums]:
    """Sums of every stage below `root`, from manifests and ledgers."""
    stages: dict[str, StageSums] = {}
    for path in sorted(root.rglob("manifest.json")):
        manifest = read_manifest(str(path.parent))
        stage = stages.setdefault(manifest.stage, StageSums())
        times: list[float] = []
        for line in read_ledger(str(path.parent)):
            if isinstance(line, DriverLine):
                times.append(line.time)
            elif isinstance(line, AttemptLine):
                times.append(line.time)
                stage.cpu += line.cpu_seconds
                stage.peak = max(stage.peak, line.peak_resident)
                stage.tasks += 1
        stage.wall += max(times) - min(times) if times else 0.0
        stage.rows += manifest.totals.rows
    return stages


def text_bytes(root: Path) -> int:
    """Bytes of text that normalize wrote."""
    manifests = [read_manifest(str(path.parent)) for path in root.rglob("manifest.json")]
    return sum(manifest.totals.text_bytes or 0 for manifest in manifests if manifest.stage == "normalize")


def table(stages: dict[str, StageSums], text: int, wall: float, cpu: float) -> str:
    """Render the table as Markdown."""
    lines = [
        "| stage | tasks | rows out | wall s | CPU s | MB of text per CPU s | peak RSS MiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in sorted(stages, key=ORDER.index):
        stage = stages[name]
        rate = f"{text / 1e6 / stage.cpu:,.0f}" if stage.cpu else "-"
        peak = f"{stage.peak >> 20}" if stage.peak else "-"
        lines.append(
            f"| {name} | {stage.tasks} | {stage.rows:,} | {stage.wall:.2f} | {stage.cpu:.2f} | {rate} | {peak} |"
        )
    lines.append(f"| whole process tree | | | {wall:.2f} | {cpu:.2f} | {text / 1e6 / cpu:.1f} | |")
    return "\n".join(lines)


def corpus() -> datakit.Recipe:
    """The recipe of all 13 files, with the paths of this machine."""
    folder = os.environ.get("DATAKIT_DATA", str(RECIPE.parent / BESIDE))
    document = tomllib.loads(RECIPE.read_text().replace(BESIDE, os.path.abspath(folder)))
    return parse_recipe(document, str(RECIPE), RECIPE.parent)


def main() -> None:
    """Run the recipe and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="where to write (a temporary directory by default)")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="keep what was written")
    arguments = parser.parse_args()
    root = arguments.root or Path(tempfile.mkdtemp(prefix="datakit-full-"))
    started = time.monotonic()
    datakit.run(corpus(), root=str(root), workers=arguments.workers)
    wall = time.monotonic() - started
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(use.ru_utime + use.ru_stime for use in usage)
    print(table(sums_of(root), text_bytes(root), wall, cpu))
    if not arguments.keep and arguments.root is None:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
