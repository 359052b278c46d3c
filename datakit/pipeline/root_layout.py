"""Defines the paths of steps and run logs in a root, lists steps, and checks that a local root is writable.

<root>/sources/<source>/<stage>-<12 digits>/     steps of a single source, shared by all recipes
<root>/<dataset>/<stage>-<12 digits>/            all other steps
<root>/packing/packing-<length>-<policy>-<12 digits>/   counts for a mixture's packed components
<root>/<dataset>/latest.json                     which of the dataset's steps are current
<root>/<dataset>/tokenizers/                     tokenizers from the Hugging Face Hub
<root>/<dataset>/runs/<run>/events.jsonl         the log of a run (events-00001.jsonl, ...: its rotated files)
<root>/.cache/                                   stored hashes of local files
<root>/.answers/                                 answers of model servers, shared by all recipes
<root>/.leases/, .pins/, .trash/                 leases and pins of steps, and the steps that `datakit gc` has removed
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator

from datakit.engine.observe.event_file import FILE_NAME as EVENTS
from datakit.errors import NotFoundError, RootError
from datakit.storage import urls
from datakit.storage.fingerprint import SHOWN_DIGITS, short
from datakit.storage.globs import subdirectories
from datakit.storage.manifest import find_manifest

SOURCES = "sources"
RUNS = "runs"
ANSWERS = ".answers"
TOKENIZERS = "tokenizers"
SOURCE_STAGES = ("download", "normalize", "annotate", "signatures")  # their steps are in the folder of a source
CONTRACT = "contract"
STAGE_NAMES = (
    *SOURCE_STAGES,
    "rules",
    "dedup",
    "passages",
    "select",
    "consolidate",
    "train-tokenizer",
    CONTRACT,
    "tokenize",
)
PACKING = r"packing-\d+-[a-z]+(?:-\d+)?"  # a step of a mixture, not of a recipe
STEP_NAME = re.compile(rf"({'|'.join(STAGE_NAMES)}|{PACKING})-[0-9a-f]{{{SHOWN_DIGITS}}}")


def source_directory(root: str, source: str) -> str:
    """Return the directory that holds the steps of a single source."""
    return urls.join(root, SOURCES, source)


def step_directory(root: str, dataset: str, source: str | None, stage: str, fingerprint: str) -> str:
    """Return the directory of a step, which is below the directory of its source or, if `source` is None, of its
    dataset.
    """
    home = urls.join(root, dataset) if source is None else source_directory(root, source)
    return urls.join(home, f"{stage}-{short(fingerprint)}")


def answers_of(step: str) -> str:
    """Return the directory of the answers of model servers, in the root that holds the step of a source."""
    return urls.join(step, "../../..", ANSWERS)


def run_directory(root: str, dataset: str, run: str) -> str:
    """Return the directory of a run's log."""
    return urls.join(root, dataset, RUNS, run)


def steps_in(directory: str, readable: Callable[[str], bool] = lambda place: True) -> list[str]:
    """Return the step directories of a dataset, a source or a root, in sorted order. The contents of the step
    directories are not read. Directories for which `readable` returns False are not listed.
    """
    children = subdirectories(directory)
    homes = [directory]
    if SOURCES in children:  # a root
        homes += filter(readable, (urls.join(directory, name) for name in children if name != SOURCES))
        above = urls.join(directory, SOURCES)
        found = (urls.join(above, name) for name in (subdirectories(above) if readable(above) else ()))
        homes += filter(readable, found)
    return sorted(urls.join(home, name) for home in homes for name in subdirectories(home) if STEP_NAME.fullmatch(name))


def sources_of(dataset: str) -> list[str]:
    """Return the directories of the sources that are named in a dataset's finished steps or in the log of its newest
    run. dataset: the dataset's directory; for any other directory, the list is empty.
    """
    above = urls.join(urls.parent(dataset), SOURCES)
    names = subdirectories(above)
    if not names or STEP_NAME.fullmatch(urls.name(dataset)) or dataset == above:
        return []
    read = {part.source for step in steps_in(dataset) for part in getattr(find_manifest(step), "partitions", ())}
    read.update(next(_logged_sources(dataset), {}))
    return [urls.join(above, name) for name in names if name in read]


def source_bases(root: str) -> dict[str, str]:
    """Return a mapping from source names to the directories of the source files ("" for a remote source), as recorded
    in the logs of all runs in a root. If several runs of a dataset name the same source, the newest of them is used.
    """
    bases: dict[str, str] = {}
    for home in subdirectories(root):
        for sources in _logged_sources(urls.join(root, home)) if home != SOURCES else ():
            for name, base in sources.items():
                bases.setdefault(name, base)
    return bases


def run_logs(directory: str) -> list[list[str]]:
    """Return, for each dataset that has logs, a list of the URLs of these logs, oldest run first. directory: a root or,
    to get the logs of a single dataset, the directory of the dataset or of one of its steps.
    """
    place = urls.parent(directory) if STEP_NAME.fullmatch(urls.name(directory)) else directory
    homes = [place, *(urls.join(place, name) for name in subdirectories(place) if not STEP_NAME.fullmatch(name))]
    found = ([urls.join(home, RUNS, run, EVENTS) for run in subdirectories(urls.join(home, RUNS))] for home in homes)
    return [logs for logs in found if logs]


def _logged_sources(dataset: str) -> Iterator[dict[str, str]]:
    """Read the first event in the log of each run of a dataset, newest run first, and yield its mapping from source
    names to the directories of the source files ("" for a remote source). Logs without this mapping, such as those
    of `datakit mixture pack`, are skipped.
    """
    for run in reversed(subdirectories(urls.join(dataset, RUNS))):
        with contextlib.suppress(NotFoundError, FileNotFoundError, json.JSONDecodeError, RecursionError):
            with urls.open_read(urls.join(dataset, RUNS, run, EVENTS)) as file:
                first = json.loads(file.readline())
            sources = first.get("sources") if isinstance(first, dict) else None
            if isinstance(sources, dict):
                yield sources


def stage_order(stage: str) -> int:
    """Return a stage's position in the flow of data, or -1 for a stage that is not part of this flow."""
    return STAGE_NAMES.index(stage) if stage in STAGE_NAMES else -1


def last_stage(stage: str) -> tuple[bool, int]:
    """Return a key that is highest for the stage whose step stands for its dataset: the last one, but never the
    contract step if there is another, because it holds no documents.
    """
    return stage != CONTRACT, stage_order(stage)


def flow_order(directory: str) -> tuple[bool, str, int, str]:
    """Return a key that sorts step directories in the order in which data flows through the steps: first those of the
    sources, then those of one dataset after another.
    """
    home, stage = urls.parent(directory), urls.name(directory).rpartition("-")[0]
    of_source = urls.name(urls.parent(home)) == SOURCES
    return not of_source, "" if of_source else home, stage_order(stage), directory


def check_root(root: str, dataset: str) -> None:
    """Raise RootError if a local root is not a directory, or is not writable and does not hold the dataset. A
    read-only root that holds the dataset is accepted, because all steps may be finished. This check writes nothing.
    """
    if not urls.is_local(root):
        return
    place = _existing(root)
    if not os.path.isdir(place):
        raise RootError(f"{root}: {place} is not a directory; choose another --root")
    if not os.path.isdir(urls.local_path(urls.join(root, dataset))):
        require_writable(root)


def require_writable(root: str) -> None:
    """Raise RootError if a local root, or the directory in which it would be created, is not writable."""
    if urls.is_local(root) and not os.access(place := _existing(root), os.W_OK | os.X_OK):
        raise RootError(f"no permission to write in {place}; change its permissions or choose another --root")


def _existing(root: str) -> str:
    place = urls.local_path(root)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return place
