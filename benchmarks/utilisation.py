"""Runs a recipe with many sources of unequal size, and prints for what share of the time its slots were occupied.

    python -m benchmarks.utilisation [--sources N] [--megabytes MB] [--workers N] [--ray ADDRESS] [--root DIR]

Utilisation is the number of slot-seconds during which attempts held slots, divided by the available slot-seconds: the
number of slots times the time from the start of the first attempt to the end of the last. The goal is 0.85. `work`
counts only the time in task functions, without the start of children and fork servers. The table shows which steps were
open while slots were idle: idle slot-seconds are divided equally among the steps that were open at that time. All
numbers come from the ledgers and the events of the run. The sizes of the sources follow a power law: source n has 1 / n
of the text of the largest source.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import datakit
from datakit.engine.ledger.ledger import AttemptLine, read_ledger

GOAL = 0.85
NOTHING = "no step was open"
SHOWN = 12


@dataclass(frozen=True)
class Span:
    """A period, in seconds since 1970: an attempt or an open step. work: seconds in task functions."""

    start: float
    end: float
    name: str = ""
    work: float = 0.0


def write_sources(folder: Path, sources: int, size: int) -> Path:
    """Write `size` bytes of made-up text in `sources` sources, one document in ten a copy; return the recipe."""
    dice = random.Random(0)
    words = ["".join(dice.choices("etaoinshrdlucmfw", k=dice.randint(2, 9))) for _ in range(20_000)]
    largest = size / sum(1 / (number + 1) for number in range(sources))
    tables = []
    for number in range(sources):
        name, kept = f"source-{number:02d}", list[str]()
        (folder / name).mkdir(parents=True)
        left = int(largest / (number + 1))
        with (folder / name / "a.jsonl").open("w") as file:
            while left > 0:
                text = dice.choice(kept) if kept and dice.random() < 0.1 else " ".join(dice.choices(words, k=300))
                kept = [*kept[-50:], text]
                left -= file.write(json.dumps({"text": text}) + "\n")
        tables.append(f'[[sources]]\nname = "{name}"\nurl = "{name}"\n')
    recipe = folder / "unequal.toml"
    recipe.write_text('name = "unequal"\n' + "".join(tables) + '[dedup]\n[tokenize]\ntokenizer = "bytes"\n')
    return recipe


def attempts(root: Path) -> list[Span]:
    """Return the attempts of all steps below a root."""
    steps = {path.parent.parent for path in root.rglob("ledger/*.jsonl")}
    lines = [line for step in steps for line in read_ledger(str(step)) if isinstance(line, AttemptLine)]
    return [Span(line.time - line.seconds, line.time, work=line.work_seconds) for line in lines]


def open_steps(log: Path) -> list[Span]:
    """Return the periods during which steps were open."""
    started, found = dict[tuple[str, str], float](), []
    for event in map(json.loads, log.read_text().splitlines()):
        step = (event.get("stage", ""), event.get("dataset", ""))
        if event["event"] == "step_started":
            started[step] = event["time"]
        elif event["event"] == "step_ended" and step in started:
            found.append(Span(started.pop(step), event["time"], " ".join(step)))
    return found


def idle(busy: Sequence[Span], steps: Sequence[Span], slots: int) -> dict[str, float]:
    """Return the idle slot-seconds between the first and the last attempt, by the step that was open."""
    lost = defaultdict[str, float](float)
    for start, end, running, names in _intervals(busy, steps):
        for name in names or (NOTHING,):
            lost[name] += max(0, slots - running) * (end - start) / max(1, len(names))
    return lost


def _intervals(busy: Sequence[Span], steps: Sequence[Span]) -> Iterator[tuple[float, float, int, tuple[str, ...]]]:
    first, last = min(span.start for span in busy), max(span.end for span in busy)
    changes = [(moment, change, "") for span in busy for moment, change in ((span.start, 1), (span.end, -1))]
    changes += [(moment, change, span.name) for span in steps for moment, change in ((span.start, 1), (span.end, -1))]
    running, names, before = 0, list[str](), first
    for moment, change, name in sorted(changes):
        if first < moment <= last and moment > before:
            yield before, moment, running, tuple(names)
            before = moment
        if not name:
            running += change
        elif change > 0:
            names.append(name)
        else:
            names.remove(name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how much of the time the slots of a run were occupied.")
    parser.add_argument("--sources", type=int, default=40)
    parser.add_argument("--megabytes", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=4, help="the number of slots; with --ray, that of the cluster")
    parser.add_argument("--ray", help="run on this Ray cluster, which the run has to itself")
    parser.add_argument("--root", type=Path, help="a new folder for texts and outputs, which is kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.root or Path(scratch)
        recipe = write_sources(folder, options.sources, int(options.megabytes * 1e6))
        started = time.monotonic()
        workers = None if options.ray else options.workers  # a cluster is used as a whole
        result = datakit.run(recipe, folder / "root", workers=workers, ray=options.ray)
        seconds = time.monotonic() - started
        assert result.log is not None
        busy, steps = attempts(folder / "root"), open_steps(Path(result.log))
    report(busy, steps, options.workers, seconds)


def report(busy: Sequence[Span], steps: Sequence[Span], slots: int, seconds: float) -> None:
    """Print the utilisation and the table."""
    available = slots * (max(span.end for span in busy) - min(span.start for span in busy))
    occupied, work = sum(span.end - span.start for span in busy), sum(span.work for span in busy)
    print(f"{len(busy)} attempts of {len(steps)} steps on {slots} slots; the run took {seconds:.1f} s")
    print(f"occupied: {occupied:.1f} of {available:.1f} slot-seconds = {occupied / available:.3f} (goal {GOAL})")
    print(f"work:     {work:.1f} of {available:.1f} slot-seconds = {work / available:.3f}")
    print("\n| open while slots were idle | idle slot-seconds | share of all |\n|---|--:|--:|")
    lost = sorted(idle(busy, steps, slots).items(), key=lambda item: -item[1])
    for name, value in lost[:SHOWN]:
        print(f"| {name} | {value:.2f} | {value / available:.1%} |")


if __name__ == "__main__":
    main()
