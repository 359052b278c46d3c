"""Where everything lies in a root: one rule for writing it and one for finding it again.

<root>/sources/<source>/<stage>-<12 digits>/     what depends on one source alone: shared by all recipes
<root>/<dataset>/<stage>-<12 digits>/            the rest
<root>/<dataset>/runs/<run>/events.jsonl         the log of a run
<root>/.cache/                                   remembered hashes of local files
"""

from __future__ import annotations

import re

from datakit.storage import urls
from datakit.storage.fingerprint import SHOWN_DIGITS, short

SOURCES = "sources"
RUNS = "runs"
STAGE_NAMES = ("download", "normalize", "signatures", "dedup", "consolidate", "train-tokenizer", "tokenize")
STEP_NAME = re.compile(rf"({'|'.join(STAGE_NAMES)})-[0-9a-f]{{{SHOWN_DIGITS}}}")


def source_home(root: str, source: str) -> str:
    """The directory of a source's own steps."""
    return urls.join(root, SOURCES, source)


def dataset_home(root: str, dataset: str) -> str:
    """The directory of a dataset's own steps."""
    return urls.join(root, dataset)


def step_directory(home: str, stage: str, fingerprint: str) -> str:
    """The directory of a step in its home."""
    return urls.join(home, f"{stage}-{short(fingerprint)}")


def run_directory(root: str, dataset: str, run: str) -> str:
    """Where the log of a run lies."""
    return urls.join(dataset_home(root, dataset), RUNS, run)


def stage_order(stage: str) -> int:
    """The position of a stage in the flow of data."""
    return STAGE_NAMES.index(stage)
