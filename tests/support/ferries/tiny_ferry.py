"""Defines a ferry that takes seconds, on made-up documents, and transforms that make it slower or larger on demand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from datakit.ferries.ferry import Ferry, Limits, Stage
from datakit.ferries.runner import Ended, Options, run_ferry
from tests.support.small_shelf import prose, write_lines

DAY = 86_400.0
LIMITS = Limits(wall=1e6, cpu=1e6, peak_rss=1 << 40)
RECIPE = """
name = "tiny"
[[sources]]
name = "novels"
url = "novels"
transform = "ferry_transforms:changed"
transform_version = 1
"""
TRANSFORM = """
import os, time
def changed(batch):
    # Only these tests set the variables; the output is always the same.
    until = time.process_time() + float(os.environ.get("TEST_BURN_SECONDS", "0"))
    held = bytearray(b"x") * int(os.environ.get("TEST_HOLD_BYTES", "0"))
    while time.process_time() < until:
        pass
    del held
    return batch
"""


def tiny_ferry(folder: Path, *stages: Stage) -> Ferry:
    """Write a recipe with its texts, and return a ferry that runs it. stages: by default run and compare."""
    write_lines(folder / "novels" / "a.jsonl", [prose(number) for number in range(60)])
    (folder / "ferry_transforms.py").write_text(TRANSFORM)
    recipe = folder / "tiny.toml"
    recipe.write_text(RECIPE)
    return Ferry("tiny", "made-up documents", str(recipe), stages or ("run", "compare"), LIMITS, "0 0 * * *", 600)


def sail(ferry: Ferry, folder: Path, **options: object) -> Ended:
    """Run a ferry with its history in `folder`."""
    return run_ferry(ferry, replace(Options(str(folder), DAY), **options), lambda line: None)  # pyright: ignore[reportArgumentType]
