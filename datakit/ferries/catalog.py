"""Lists all ferries. docs/ferries.md describes what each of them proves, and docs/measurements.md what it takes."""

from __future__ import annotations

from datakit.errors import UsageError, suggestion
from datakit.ferries.ferry import Ferry, Limits, Request, Training

GIB = 1 << 30
SMOKE_LOSS = 8.9  # a model that has learned nothing has a loss of 9.01, the logarithm of the vocabulary size 8192
CANARY_LOSS = 7.5

FERRIES = (
    Ferry(
        name="smoke",
        description="the demo's text: run, validate, train 20 steps, run again",
        recipe="demo",
        stages=(
            "warm-up", "run", "validate", "train", "validate-training", "again", "compare", "report",
        ),
        limits=Limits(wall=120, cpu=150, peak_rss=2 * GIB),
        schedule="23 5 * * *",
        timeout=1800,
        training=Training("train.toml", 20, SMOKE_LOSS),
    ),
    Ferry(
        name="train-canary",
        description="the demo's text: validate, train 100 steps, stopped once in the middle and resumed",
        recipe="demo",
        stages=("warm-up", "run", "validate", "interrupt", "resume", "validate-training", "report"),
        limits=Limits(wall=240, cpu=300, peak_rss=2 * GIB),
        schedule="53 5 * * *",
        timeout=1800,
        training=Training("train.toml", 100, CANARY_LOSS),
    ),
    Ferry(
        name="skewed",
        description="generated text with extreme sizes: huge documents, tiny files, millions of duplicates",
        recipe="skewed.toml",
        stages=("generate", "warm-up", "run", "validate", "again", "compare", "report"),
        limits=Limits(wall=900, cpu=600, peak_rss=3 * GIB),
        schedule="11 1 * * 6",
        timeout=14400,
    ),
    Ferry(
        name="nightly",
        description="FineWeb-Edu sample-10BT from the Hugging Face Hub, on a cluster",
        recipe="fineweb-edu-10bt",
        stages=("run", "validate", "again", "compare", "report"),
        limits=Limits(wall=6 * 3600, cpu=60 * 3600, peak_rss=16 * GIB),
        schedule="37 0 * * *",
        timeout=8 * 3600,
        requests=(
            Request("space in the root", "120 GB", "14 Parquet files, 28.5 GB; 10 billion tokens", "bytes written"),
            Request("CPUs of the cluster", "32", "about 10 million documents", "CPUs"),
            Request("memory of a node", "64 GB", "files of 2.2 GB", "memory of a task"),
            Request("memory of the largest process", "16 GB", "partitions of at most 1 GiB", "memory of a process"),
        ),
        needs_cluster=True,
    ),
)  # fmt: skip


def ferry_named(name: str) -> Ferry:
    """Return the ferry with this name. Raises UsageError if there is none."""
    for ferry in FERRIES:
        if ferry.name == name:
            return ferry
    raise UsageError(f"no ferry {name!r}: {suggestion(name, (ferry.name for ferry in FERRIES))}")
