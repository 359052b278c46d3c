"""Runs the fuzzers, one after the other, and reports cases per second and findings; see `--help`."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import textwrap
import traceback

from tests.support.fuzz.rounds import Tally, fuzz

FUZZERS = ("json_sources", "json_arrays", "csv_files", "dedup_runs", "tokenizer_files", "mixtures")
WIDTH = 80
FRAMES = 3  # of the error; the reduced case says the rest


def main() -> int:
    """Run the fuzzers that the command line names. Returns 1 if any of them found something."""
    options = _options()
    first = random.randrange(10**6) if options.seed is None else options.seed
    print(f"{'fuzzer':16}{'seed':>8}{'seconds':>9}{'cases':>9}{'cases/s':>9}{'findings':>10}", flush=True)
    findings = 0
    for name in options.fuzzers or FUZZERS:
        module = importlib.import_module(f"tests.support.fuzz.{name}")
        tally = fuzz(module.CASES, module.check, first, options.seconds)
        failed = tally.failed is not None
        findings += failed
        rate = tally.cases / max(tally.seconds, 1e-9)
        print(f"{name:16}{first:8}{tally.seconds:9.0f}{tally.cases:9,}{rate:9.1f}{int(failed):10}", flush=True)
        if failed:
            _report(name, tally)
    return int(findings > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.fuzz",
        description="Compare datakit with simple models on random cases. A difference is reduced and printed.",
        epilog="example: python -m tests.support.fuzz csv_files --seconds 600",
    )
    parser.add_argument("fuzzers", nargs="*", metavar="FUZZER", help=f"one or more of {', '.join(FUZZERS)} (all)")
    parser.add_argument("--seconds", type=float, default=120, help="time for each fuzzer (120)")
    parser.add_argument("--seed", type=int, help="seed of the first round (random); 0 seconds run that round alone")
    options = parser.parse_args()
    if unknown := sorted(set(options.fuzzers) - set(FUZZERS)):
        parser.error(f"unknown fuzzer {unknown[0]!r}; choose from {', '.join(FUZZERS)}")
    return options


def _report(name: str, tally: Tally) -> None:
    assert tally.error is not None
    lines = traceback.format_exception(tally.error, limit=-FRAMES)
    for line in "".join(lines).splitlines():
        print(*(textwrap.wrap(line, WIDTH - 2, initial_indent="  ", subsequent_indent="    ") or [""]), sep="\n")
    print(f"reproduce: make fuzz FUZZERS={name} SEED={tally.failed} SECONDS=0", flush=True)


if __name__ == "__main__":
    sys.exit(main())
