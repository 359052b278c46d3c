"""Checks the finished run of 121 MB of real text with `--deep`; prints CPU time and peak memory, by check and in total.

    python -m benchmarks.full_run --root DIR --keep
    python -m benchmarks.validate DIR

MB of text are 10^6 bytes of text that are read and compared with their hashes: normalized documents, and consolidated
ones. The time to import libraries and to load the tokenizer is part of the total. The aims are at least 100 MB of text
per CPU-second, and a peak of less than 300 MB.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from pathlib import Path

from datakit.storage.manifest import read_manifest
from datakit.validate.checks import Check
from datakit.validate.finding import Result
from datakit.validate.subject import Subject
from datakit.validate.validation import Report, validate

WITH_TEXT = ("normalize", "consolidate")


def seconds_used() -> float:
    """Return the CPU time of this process so far, with its start."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(place: str) -> tuple[Report, Counter[str]]:
    """Validate a root; return the report, and the CPU-seconds of each check."""
    spent, run = Counter[str](), Check.run

    def measured(check: Check, step: Subject) -> Result:
        before = time.process_time()
        result = run(check, step)
        spent[check.name] += time.process_time() - before
        return result

    Check.run = measured
    try:
        return validate(place, deep=True), spent
    finally:
        Check.run = run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="the root that `benchmarks.full_run --keep` wrote")
    root = parser.parse_args().root
    started, before = time.monotonic(), seconds_used()
    report, spent = timed(str(root.resolve()))
    wall, used = time.monotonic() - started, seconds_used()
    assert report.findings == [], report.findings
    text = {
        stage: sum(read_manifest(step.directory).totals.text_bytes or 0 for step in report.steps if step.stage == stage)
        for stage in WITH_TEXT
    }
    print("| check | CPU s |\n|---|--:|")
    for name, seconds in spent.most_common():
        print(f"| {name} | {seconds:.2f} |")
    total = sum(text.values()) / 1e6
    print(f"| start of the interpreter | {before:.2f} |\n| everything | {used:.2f} |\n")
    print(f"{len(report.steps)} steps, {total:.0f} MB of text ({text['normalize'] / 1e6:.0f} MB normalized)")
    print(
        f"{total / used:.0f} MB of text per CPU-second, or {text['normalize'] / 1e6 / used:.0f} MB of normalized text"
    )
    print(f"wall {wall:.1f} s, peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
