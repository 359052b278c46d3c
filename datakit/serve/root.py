"""Lists what a root holds (datasets, runs, training runs), and keeps everything else out of reach.

No part of a request becomes a path. A name in a request is looked up in a listing of the root, and the path comes from
this listing. A listing holds only names that a recipe or a run file could have given, and nothing that really is
outside of the root, behind a link. A listing costs one scan of each dataset's directory, and is reused for
LISTING_SECONDS on a disk and for STORE_SECONDS in a store.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from datakit.engine.observe.event_file import FILE_NAME as EVENTS
from datakit.errors import NotFoundError, RootError
from datakit.lineage.graph import TRAIN
from datakit.pipeline.root_layout import RUNS, SOURCES
from datakit.recipe import NAME_RULE
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.manifest import manifest_url

LISTING_SECONDS = 1.0
STORE_SECONDS = 10.0  # for an object store, where a listing costs requests
MOST_LINKS = 100_000  # limit on the files and folders of a report's steps, all of which are searched for links
TRAINING = re.compile(rf"{TRAIN}-[0-9a-f]{{12}}")
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A run (`kind` "run") or a training run ("training") of a dataset. url: its directory."""

    kind: str
    dataset: str
    name: str
    url: str


@dataclass(frozen=True)
class Listing:
    """The content of a root. datasets: the directories by name. entries: by kind, dataset and name, newest run first.
    hidden: the number of directories that are not shown, because of their names or because links lead elsewhere.
    """

    datasets: dict[str, str]
    entries: dict[tuple[str, str, str], Entry]
    hidden: int = 0

    def of(self, kind: str, dataset: str | None = None) -> list[Entry]:
        """Return the entries of a kind; if a dataset is given, only those of this dataset."""
        return [one for one in self.entries.values() if one.kind == kind and dataset in (None, one.dataset)]


@dataclass
class ServedRoot:
    """A root that is served. url: a directory or the URL of one in an object store."""

    url: str
    _real: str = ""
    _listed: tuple[float, Listing] | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.url = urls.absolute(self.url)
        if urls.is_local(self.url):
            if not os.path.isdir(self.url):
                raise NotFoundError(f"{self.url} is not a directory; give the root of `datakit run`")
            self._real = os.path.realpath(self.url)

    @property
    def pause(self) -> float:
        """The minimum time between two looks at a file or a directory, in seconds."""
        return LISTING_SECONDS if self._real else STORE_SECONDS

    def listing(self) -> Listing:
        """Return the content of the root, at most `pause` seconds old."""
        with self._lock:
            if self._listed is None or time.monotonic() - self._listed[0] >= self.pause:
                self._listed = (time.monotonic(), self._list())
            return self._listed[1]

    def dataset(self, name: str) -> str:
        """Return the directory of a dataset. Raises NotFoundError."""
        return _found(self.listing().datasets.get, name, f"this root has no dataset {name!r}")

    def entry(self, kind: str, dataset: str, name: str) -> Entry:
        """Return a run or a training run. Raises NotFoundError."""
        missing = f"the dataset {dataset!r} has no such run; older runs may have been removed"
        return _found(self.listing().entries.get, (kind, dataset, name), missing)

    def inside(self, url: str) -> bool:
        """Return True if a file or a directory is below the root after all links have been followed."""
        if not self._real:
            return url.startswith(f"{self.url}/") and "/../" not in f"{url}/"
        return urls.is_local(url) and os.path.realpath(urls.local_path(url)).startswith(f"{self._real}{os.sep}")

    def readable(self, place: str) -> bool:
        """Return True if a file, or a directory with its manifest, is below the root, after all links."""
        return self.inside(place) and self.inside(manifest_url(place))

    def require_all_inside(self, places: Iterable[str]) -> None:
        """Raise RootError if one of these files and directories, which need not exist, is outside of the root."""
        for place in places:
            if not self.inside(place):
                raise RootError(f"{place} is outside of the root that is served; use `datakit report` instead")

    def require_inside(self, directories: Iterable[str]) -> None:
        """Raise RootError if a directory, or a link below it, leads out of the root, or if there are too many files."""
        seen = 0
        for directory in directories:
            if not self.inside(directory):
                raise RootError(f"{directory} is outside of the root that is served; use `datakit report` instead")
            for folder, folders, files in os.walk(directory) if self._real else ():
                seen += len(folders) + len(files)
                wrong = next((name for name in (*folders, *files) if self._leaves(folder, name)), None)
                if wrong is not None or seen > MOST_LINKS:
                    found = f"contains {wrong!r}, a link out of the root" if wrong else "contains too many files"
                    raise RootError(f"{folder} {found}; use `datakit report` instead")

    def _leaves(self, folder: str, name: str) -> bool:
        path = os.path.join(folder, name)
        return os.path.islink(path) and not self.inside(path)

    def _list(self) -> Listing:
        names = [name for name in subdirectories(self.url) if name != SOURCES]
        datasets = {name: urls.join(self.url, name) for name in names if self._shown(urls.join(self.url, name))}
        entries: dict[tuple[str, str, str], Entry] = {}
        hidden = len(names) - len(datasets)
        for dataset, home in datasets.items():
            inside = self.inside(urls.join(home, RUNS))
            found = [*(self._runs(dataset, home) if inside else []), *self._trainings(dataset, home)]
            shown = [one for one in found if self._shown(one.url)]
            hidden += len(found) - len(shown) + (not inside)
            entries |= {(one.kind, one.dataset, one.name): one for one in shown}
        return Listing(datasets, entries, hidden)

    def _shown(self, url: str) -> bool:
        return NAME_RULE.fullmatch(urls.name(url)) is not None and self.inside(url)

    def _runs(self, dataset: str, home: str) -> list[Entry]:
        above = urls.join(home, RUNS)
        return [Entry("run", dataset, name, urls.join(above, name)) for name in reversed(subdirectories(above))]

    def _trainings(self, dataset: str, home: str) -> list[Entry]:
        names = [name for name in subdirectories(home) if TRAINING.fullmatch(name)]
        return [Entry("training", dataset, name, urls.join(home, name)) for name in names]


def log_of(entry: Entry) -> str:
    """Return the URL of a run's log."""
    return urls.join(entry.url, EVENTS)


def _found(look_up: Callable[..., T | None], key: object, missing: str) -> T:
    found = look_up(key)
    if found is None:
        raise NotFoundError(missing)
    return found
