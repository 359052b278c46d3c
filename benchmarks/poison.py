"""Measure the cost of poison: records that exhaust memory, crash or hang, and inputs that are too large.

    python -m benchmarks.poison [--workers 4] [--tasks 1000] [--hogs 0] [--only records|giants|overshoot]

*records*: 1,000 tasks of 10 records of 10 ms; clean, with one poisoned record of each kind, and with 3 % of all tasks
and 3 % of all records poisoned (a third each of memory bombs, crashes and endless loops). Prints the wall time relative
to the clean run, whether each poisoned record was named, and how many tasks finished. *giants*: a 256 MiB document, a
JSON line of 1 GiB and a 1 MB gzip that expands to 1 GiB, through normalize, with the peak of every attempt against its
budget. *overshoot*: how far memory bombs in each library exceed their budget, as many at once as there are workers,
next to `--hogs` processes that only use CPU. Takes some ten minutes.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.engine.scheduler.finish import read_quarantine
from datakit.engine.task import Plan, Preload, Step, Task, Tolerance
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import PartialError
from datakit.normalize import stage as normalize_stage
from datakit.storage.manifest import Manifest
from tests.support.engine import poison_tasks
from tests.support.engine.memory_tasks import LIBRARIES
from tests.support.normalize.sources import normalize_step

RECORDS, SECONDS, HANG_SECONDS = 10, 0.01, 0.5
KINDS = ("bomb", "segfault", "loop")
MIB = 1 << 20


def run(step: Step, plan: Plan, workers: int) -> Manifest | None:
    """Run a step, print its duration, and return the manifest, or None if it ended partial."""
    local = LocalExecutor(workers)
    started = time.monotonic()
    try:
        return run_step(step, plan, lambda: local, Observer())
    except PartialError:
        return None
    finally:
        local.close()
        print(f"{time.monotonic() - started:8.1f} s", end="  ", flush=True)


def poisoned(name: str, poison: Mapping[int, str], allowed: int, options: argparse.Namespace) -> None:
    """One line of the table."""
    directory = Path(tempfile.mkdtemp(prefix="datakit-poison-"))
    try:
        plan = poison_tasks.digests(
            options.tasks, poison, Tolerance(allowed), records=RECORDS, batch=5, seconds=SECONDS,
            memory_bytes=64 * MIB, hang_seconds=HANG_SECONDS,
        )  # fmt: skip
        print(f"{name:34}", end="", flush=True)
        manifest = run(poison_tasks.poison_step(str(directory)), plan, options.workers)
        lines = [line for line in read_ledger(str(directory)) if isinstance(line, AttemptLine)]
        done = {line.key for line in lines if line.cause is Cause.DONE}
        over = max((line.peak_memory / line.budget for line in lines if line.budget), default=0.0)
        if manifest is not None:
            found = {record.position for record in read_quarantine(str(directory))} if poison else set()
        else:
            text = (directory / "partial.json").read_text()
            found = {record for record in poison if f'"position": {record},' in text}
        print(f"{len(done):5} done, {len(lines):5} attempts, named {len(found & set(poison))} of {len(poison)}, "
              f"peak {over:.2f} of its budget")  # fmt: skip
    finally:
        shutil.rmtree(directory)


def records(options: argparse.Namespace) -> None:
    """Run the part `records`."""
    count, dice = options.tasks * RECORDS, random.Random(5)
    poisoned("clean", {}, 0, options)
    for kind in KINDS:
        poisoned(f"one {kind}, not allowed", {count // 2: kind}, 0, options)
        poisoned(f"one {kind}, allowed", {count // 2: kind}, 1, options)
    tasks = dice.sample(range(options.tasks), max(1, 3 * options.tasks // 100))
    some = {task * RECORDS + dice.randrange(RECORDS): KINDS[n % 3] for n, task in enumerate(tasks)}
    poisoned(f"{len(some)} in {len(some)} tasks, allowed", some, len(some), options)
    many = {record: KINDS[n % 3] for n, record in enumerate(dice.sample(range(count), 3 * count // 100))}
    poisoned(f"{len(many)} of {count} records, allowed", many, len(many), options)


def giants(options: argparse.Namespace) -> None:
    """Run the part `giants`."""
    folder = Path(tempfile.mkdtemp(prefix="datakit-giants-"))
    try:
        for name, make in (
            ("250 MiB document", _document),
            ("256 MiB document", _larger_document),
            ("1 GiB line", _line),
            ("gzip of 1 GiB", _gzip),
        ):
            source = folder / name.replace(" ", "-")
            source.mkdir()
            make(source)
            print(f"{name:34}", end="", flush=True)
            step = normalize_step(folder / "out" / source.name, str(source))
            step = replace(step, operations={**step.operations, "max_quarantined": 1})
            manifest = run(step, normalize_stage.plan(step), options.workers)
            lines = [line for line in read_ledger(step.directory) if isinstance(line, AttemptLine)]
            assert manifest is not None
            left_out = read_quarantine(step.directory) if manifest.quarantine.records else []
            print(f"{manifest.totals.rows} rows, left out: {[f'{r.file}:{r.position}: {r.reason}' for r in left_out]}")
            for line in lines:
                print(f"    {line.phase}: {line.cause}, peak {line.peak_memory // MIB} of {line.budget // MIB} MiB, "
                      f"resident {line.peak_resident // MIB} MiB, {line.seconds:.1f} s")  # fmt: skip
            shutil.rmtree(source)
    finally:
        shutil.rmtree(folder)


def _larger_document(folder: Path) -> None:
    _document(folder, 256 * MIB)


def _document(folder: Path, size: int = 250 * MIB) -> None:
    words = random.Random(7).choices([f"w{n:x}" for n in range(50_000)], k=1_000_000)
    text = (" ".join(words) * 60)[:size]
    (folder / "in.jsonl").write_bytes(b'{"text": "' + text.encode() + b'"}\n{"text": "short"}\n')


def _line(folder: Path) -> None:
    with (folder / "in.jsonl").open("wb") as file:
        file.write(b'{"text": "')
        for _ in range(1024):
            file.write(os.urandom(MIB // 2).hex().encode())
        file.write(b'"}\n{"text": "short"}\n')


def _gzip(folder: Path) -> None:
    with gzip.open(folder / "in.jsonl.gz", "wb", compresslevel=9) as file:
        file.write(b'{"text": "short"}\n{"text": "')
        for _ in range(1024):
            file.write(b"a" * MIB)
        file.write(b'"}\n')


def overshoot(options: argparse.Namespace) -> None:
    """Run the part `overshoot`."""
    hogs = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(options.hogs)]
    for hog in hogs:
        hog.start()
    local = LocalExecutor(options.workers)
    try:
        for library, size, count in [("numpy", 64, 200), ("numpy", 256, 200), *((name, 192, 16) for name in LIBRARIES)]:
            _bombs(local, library, size * MIB, count)
        _bombs(local, "numpy", 64 * MIB, 400, quiet=True)
    finally:
        local.close()
        for hog in hogs:
            hog.kill()


def _bombs(local: LocalExecutor, library: str, budget: int, count: int, quiet: bool = False) -> None:
    """Attempts that allocate without end, at once or after up to 30 ms of idling."""
    preloads = Preload("numpy"), Preload("tests.support.engine.memory_tasks")
    for number in range(count):
        arguments = {"library": library, "at_once": False, "pause": number % 31 / 1000 if quiet else 0.0}
        task = Task(str(number), "tests.support.engine.memory_tasks:overfill", arguments)
        local.submit(Attempt(task, "test", "/nowhere", 1, 1, budget, preloads))
    outcomes: list[Outcome] = []
    while len(outcomes) < count:
        outcomes += local.wait(1.0)
    assert {outcome.cause for outcome in outcomes} == {Cause.MEMORY}
    over = sorted(outcome.peak_memory / budget for outcome in outcomes)
    many, most = sum(share > 1.1 for share in over), over[9 * count // 10]
    print(f"{library:12} {budget // MIB:4} MiB{', quiet first' if quiet else ''}  {many:3} of {count} over 1.1;  "
          f"median {over[count // 2]:.2f}, 9 of 10 below {most:.2f}, largest {over[-1]:.2f}")  # fmt: skip


def _spin() -> None:
    while True:
        pass


PARTS = {"records": records, "giants": giants, "overshoot": overshoot}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--hogs", type=int, default=0)
    options = parser.parse_args()
    for name, part in PARTS.items():
        if options.only in (None, name):
            part(options)


if __name__ == "__main__":
    main()
