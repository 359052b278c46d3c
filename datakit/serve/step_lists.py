"""Lists the steps of datasets for their pages, and reads nothing to which a link leads out of the root.

A list is kept until the size or the time of a manifest, or of a record of current steps, has changed. Cost otherwise:
one look at each of these files in the root, because steps of all datasets decide which steps are current.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from datakit.errors import DatakitError, NotFoundError
from datakit.pipeline.overview import ListedStep, overview
from datakit.pipeline.root_layout import steps_in
from datakit.serve.root import ServedRoot
from datakit.storage import urls
from datakit.storage.latest import FILE_NAME as LATEST
from datakit.storage.manifest import manifest_url

MOST_KEPT = 64
Stamps = tuple[tuple[str, tuple[int, float] | None], ...]


@dataclass(frozen=True)
class StepList:
    """The steps of a dataset. hidden: the number of its steps to which links lead out of the root."""

    steps: tuple[ListedStep, ...] = ()
    problems: tuple[str, ...] = ()
    hidden: int = 0


@dataclass
class StepLists:
    """Makes the lists of a root's datasets, and keeps them."""

    root: ServedRoot
    _kept: OrderedDict[str, tuple[Stamps, StepList]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, dataset: str) -> StepList:
        """Return the steps of a dataset. Raises NotFoundError."""
        home = self.root.dataset(dataset)
        stamps = self._stamps()
        with self._lock:
            kept = self._kept.get(home)
        if kept is None or kept[0] != stamps:
            kept = (stamps, self._made(home))
        with self._lock:
            self._kept[home] = kept
            self._kept.move_to_end(home)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return kept[1]

    def _stamps(self) -> Stamps:
        """Return the files that decide about the lists, each with its size and time (None: missing or outside)."""
        steps = steps_in(self.root.url, self.root.inside)
        records = [urls.join(home, LATEST) for home in dict.fromkeys(map(urls.parent, steps))]
        places = [*records, *map(manifest_url, steps)]
        return tuple((place, _stamp(place) if self.root.inside(place) else None) for place in places)

    def _made(self, home: str) -> StepList:
        hidden = sum(not self.root.readable(step) for step in steps_in(home, self.root.inside))
        try:
            found = overview(home, self.root.readable)
        except DatakitError as error:
            return StepList(problems=(str(error),), hidden=hidden)
        return StepList(found.steps, found.problems, hidden)


def _stamp(place: str) -> tuple[int, float] | None:
    try:
        return urls.stamp(place)
    except NotFoundError:
        return None
