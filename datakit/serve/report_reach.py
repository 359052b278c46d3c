"""Makes sure that a report shows nothing from outside of the root that is served, even if a link leads there.

The files that decide which steps a report covers are checked before they are read. The manifest of a step outside of
the root is not read. All other files of the steps are checked before their numbers are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datakit.engine.ledger.ledger import FOLDER as LEDGER
from datakit.lineage.graph import FoundStep, upstream_first
from datakit.pipeline.root_layout import RUNS
from datakit.report.subject import Subject
from datakit.serve.root import Entry, ServedRoot
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.latest import FILE_NAME as LATEST
from datakit.storage.latest import read_latest
from datakit.storage.manifest import FILE_NAME as MANIFEST
from datakit.storage.manifest import manifest_url
from datakit.trainer.metrics.json_lines import FILE_NAME as METRICS


def require_entry(root: ServedRoot, entry: Entry) -> None:
    """Raise RootError if the files of a run or a training run are outside of the root."""
    root.require_all_inside([entry.url])
    names = [METRICS, MANIFEST] if entry.kind == "training" else [info.path for info in urls.listing(entry.url)]
    root.require_all_inside(urls.join(entry.url, name) for name in names)
    root.require_inside([urls.join(entry.url, LEDGER)])


def require_dataset(root: ServedRoot, home: str) -> None:
    """Raise RootError if the files by which the last step of a dataset is found are outside of the root."""
    root.require_all_inside([home, manifest_url(home), urls.join(home, LATEST), urls.join(home, RUNS)])
    latest = read_latest(home)
    recorded = (latest.step, latest.documents) if latest else ()
    names = (
        [step.directory for step in recorded if step]
        if latest
        else [name for name in subdirectories(home) if name != RUNS]
    )
    _require_steps(root, [urls.join(home, name) for name in names])


def require_steps(root: ServedRoot, subject: Subject) -> None:
    """Raise RootError if the steps of a report, or what the report reads about them, are outside of the root."""
    steps = dict.fromkeys(step.directory for step in (*subject.steps, *_with_texts(root, subject)))
    own = [subject.directory] if subject.kind == "training run" else []
    homes = dict.fromkeys(urls.parent(directory) for directory in (*steps, *own))
    root.require_all_inside(urls.join(home, name) for home in homes for name in (LATEST, RUNS))
    for home in homes:
        _require_logs(root, urls.join(home, RUNS))
    _require_steps(root, list(steps))
    root.require_inside(steps)


def _with_texts(root: ServedRoot, subject: Subject) -> Iterator[FoundStep]:
    """Yield the steps from which dedup steps were made; a report with texts reads them."""
    for step in subject.found("dedup"):
        if step.manifest is not None:
            yield from upstream_first(step.directory, step.manifest, root.readable)


def _require_logs(root: ServedRoot, runs: str) -> None:
    """Raise RootError if the log of a run is outside of the root; a report reads the logs of its datasets."""
    if urls.is_local(runs):
        for name in subdirectories(runs):
            place = urls.join(runs, name)
            root.require_all_inside([place])
            root.require_all_inside(info.url for info in urls.listing(place))


def _require_steps(root: ServedRoot, directories: Sequence[str]) -> None:
    for directory in directories:
        root.require_all_inside([directory, manifest_url(directory)])
