"""Makes sure that a report shows nothing from outside of the root that is served, even if a link leads there.

The files that decide which steps a report covers are checked before they are read. The steps are known only after that,
and are checked before their numbers are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from datakit.lineage.graph import FoundStep
from datakit.pipeline.root_layout import RUNS
from datakit.serve.root import Entry, ServedRoot
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.latest import FILE_NAME as LATEST
from datakit.storage.latest import read_latest
from datakit.storage.manifest import FILE_NAME as MANIFEST
from datakit.trainer.metrics.json_lines import FILE_NAME as METRICS


def require_entry(root: ServedRoot, entry: Entry) -> None:
    """Raise RootError if the files of a run or a training run are outside of the root."""
    root.require_all_inside([entry.url])
    names = [METRICS, MANIFEST] if entry.kind == "training" else [info.path for info in urls.listing(entry.url)]
    root.require_all_inside(urls.join(entry.url, name) for name in names)


def require_dataset(root: ServedRoot, home: str) -> None:
    """Raise RootError if the files by which the last step of a dataset is found are outside of the root."""
    root.require_all_inside([home, urls.join(home, LATEST), urls.join(home, RUNS)])
    latest = read_latest(home)
    names = [latest.step.directory] if latest else [name for name in subdirectories(home) if name != RUNS]
    _require_steps(root, [urls.join(home, name) for name in names])


def require_steps(root: ServedRoot, steps: Sequence[FoundStep]) -> None:
    """Raise RootError if steps, or what a report reads about them, are outside of the root."""
    homes = dict.fromkeys(urls.parent(step.directory) for step in steps)
    root.require_all_inside(urls.join(home, name) for home in homes for name in (LATEST, RUNS))
    for home in homes:
        _require_logs(root, urls.join(home, RUNS))
    _require_steps(root, [step.directory for step in steps])
    root.require_inside([step.directory for step in steps])


def _require_logs(root: ServedRoot, runs: str) -> None:
    """Raise RootError if the log of a run is out of the root; a report reads the logs of its datasets."""
    if urls.is_local(runs):
        for name in subdirectories(runs):
            place = urls.join(runs, name)
            root.require_all_inside([place])
            root.require_all_inside(info.url for info in urls.listing(place))


def _require_steps(root: ServedRoot, directories: Sequence[str]) -> None:
    for directory in directories:
        root.require_all_inside([directory, urls.join(directory, MANIFEST)])
