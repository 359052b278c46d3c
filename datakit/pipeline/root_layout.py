"""Where everything lies in a root: one rule for writing it and one for finding it again.

<root>/sources/<source>/<stage>-<12 digits>/     what depends on one source alone: shared by all recipes
<root>/<dataset>/<stage>-<12 digits>/            the rest
<root>/packing/packing-<length>-<policy>-<12 digits>/   counts of a mixture's packed components
<root>/<dataset>/runs/<run>/events.jsonl         the log of a run
<root>/.cache/                                   remembered hashes of local files
"""

from __future__ import annotations

import os
import re

from datakit.errors import RootError
from datakit.storage import urls
from datakit.storage.fingerprint import SHOWN_DIGITS, short

SOURCES = "sources"
RUNS = "runs"
STAGE_NAMES = ("download", "normalize", "signatures", "dedup", "consolidate", "train-tokenizer", "tokenize")
PACKING = r"packing-\d+-(?:split|truncate|drop)(?:-\d+)?"  # a mixture's, no stage of a recipe
STEP_NAME = re.compile(rf"({'|'.join(STAGE_NAMES)}|{PACKING})-[0-9a-f]{{{SHOWN_DIGITS}}}")


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


def steps_in(directory: str) -> list[str]:
    """The step directories of a dataset, a source or a root. Looks no deeper than a root goes."""
    children = _children(directory)
    homes = [directory]
    if SOURCES in children:  # a root
        homes += [urls.join(directory, name) for name in children if name != SOURCES]
        above = urls.join(directory, SOURCES)
        homes += [urls.join(above, name) for name in _children(above)]
    found = (urls.join(home, name) for home in homes for name in _children(home) if STEP_NAME.fullmatch(name))
    return sorted(found)


def _children(directory: str) -> list[str]:
    """The names of the directories in a directory; none where it is not there."""
    if urls.is_local(directory):
        if not os.path.isdir(directory):
            return []
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    file_system, path = urls.filesystem(directory)
    try:
        entries = file_system.ls(path, detail=True)
    except FileNotFoundError:
        return []
    return sorted(urls.name(entry["name"]) for entry in entries if entry["type"] == "directory")


def stage_order(stage: str) -> int:
    """The position of a stage in the flow of data; what stands beside the flow comes before it."""
    return STAGE_NAMES.index(stage) if stage in STAGE_NAMES else -1


def check_root(root: str) -> None:
    """Raises RootError where nothing can be written below a local root; writes nothing to find out."""
    if not urls.is_local(root):
        return
    place = urls.local_path(root)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise RootError(f"{root}: {place} is not a directory; choose another --root")
    if not os.access(place, os.W_OK | os.X_OK):
        raise RootError(f"no permission to write in {place}; choose another --root or change its permissions")
