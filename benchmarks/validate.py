"""Checks the finished run of 121 MB of real text with `--deep`; prints CPU time and peak memory, by check and in total.

    python -m benchmarks.full_run --root DIR --keep
    python -m benchmarks.validate DIR

MB of text are 10^6 bytes of text that are read and compared with their hashes: normalized documents, and consolidated
ones. The first round includes the start of the interpreter, all imports and loading the tokenizer, about 0.9 s of CPU
time whatever the size of the data; the second round runs in the same process. The aims are at least 100 MB of text per
CPU-second, and a peak of less than 300 MB.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from unittest.mock import patch

from datakit.engine.arrow_without_pandas import leave_out_pandas
from datakit.storage.manifest import read_manifest
from datakit.validate.checks import Check
from datakit.validate.finding import Result
from datakit.validate.memory import use_one_heap
from datakit.validate.subject import Subject
from datakit.validate.validation import Report, validate

WITH_TEXT = ("normalize", "consolidate")


def seconds_used() -> float:
    """Return the CPU time of this process so far, with its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(place: str) -> tuple[Report, dict[str, float]]:
    """Validate a root; return the report, and the CPU-seconds of each check."""
    spent, run = dict[str, float](), Check.run

    def measured(check: Check, step: Subject) -> Result:
        before = time.process_time()
        result = run(check, step)
        spent[check.name] = spent.get(check.name, 0.0) + time.process_time() - before
        return result

    with patch.object(Check, "run", measured):
        return validate(place, deep=True), spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="the root that `benchmarks.full_run --keep` wrote")
    root = parser.parse_args().root
    use_one_heap()
    leave_out_pandas()
    for name in ("first round", "second round"):
        before, wall = seconds_used() if name == "second round" else 0.0, time.monotonic()
        report, spent = timed(str(root.resolve()))
        show(name, report, spent, seconds_used() - before, time.monotonic() - wall)


def show(name: str, report: Report, spent: dict[str, float], used: float, wall: float) -> None:
    """Print the CPU time of each check, and the rates."""
    assert report.findings == [], report.findings
    normalized, consolidated = (
        sum(read_manifest(step.directory).totals.text_bytes or 0 for step in report.steps if step.stage == stage) / 1e6
        for stage in WITH_TEXT
    )
    print(f"| check, {name} | CPU s |\n|---|--:|")
    for check, seconds in sorted(spent.items(), key=lambda pair: -pair[1]):
        print(f"| {check} | {seconds:.2f} |")
    both = normalized + consolidated
    print(f"| everything | {used:.2f} |\n")
    print(
        f"{len(report.steps)} steps in {wall:.1f} s, {both:.0f} MB of text, {normalized:.0f} MB of it normalized text"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"{both / used:.0f} MB of text per CPU-second ({normalized / used:.0f} MB of normalized text)")
    print(f"peak RSS so far {peak:.0f} MB\n")


if __name__ == "__main__":
    main()
