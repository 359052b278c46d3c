"""Measures the disk use of a root by dataset, stage, source and age.

Every file of the root is counted once, by its length; symbolic links are not followed. The consolidate step links the
partitions that it does not change to those of the normalize step. The bytes of a file with several such names count
once, for a source's step if there is one and otherwise for the first name. Files of a step count for its stage; those
below `data/<source>/` count for that source. The age of a file is that of the newest file of its step, because
the files of one step are needed or removed together. Where no dataset, stage or source applies, a name in parentheses,
such as (logs) or (trash), takes its place. Cost: one walk or one listing of the root, and memory for one entry per
file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from datakit.pipeline.root_layout import RUNS, SOURCES
from datakit.retention import trash
from datakit.retention.inventory import StoredFile, files, require_root, step_of
from datakit.retention.reachability import TRAINING_RUN
from datakit.storage import store_clock, urls
from datakit.storage.manifest import DATA_FOLDER

DAY_SECONDS = 86_400.0
AGES = ((1, "under a day"), (7, "under a week"), (30, "under a month"), (365, "under a year"))  # days, name
OLDEST = "a year or more"
SHARED, OWN, OTHER, LOGS, ALL = "(shared sources)", "(datakit's own files)", "(other)", "(logs)", "(all)"
TRASH = "(trash)"


@dataclass(frozen=True)
class Use:
    """The files of one dataset, stage, source and age: their number and their size."""

    dataset: str
    stage: str
    source: str
    age: str
    files: int
    bytes: int


@dataclass(frozen=True)
class DiskUse:
    """The disk use of a root. entries: one per combination that occurs, the largest first."""

    root: str
    files: int
    bytes: int
    entries: tuple[Use, ...]

    def by(self, what: str) -> dict[str, tuple[int, int]]:
        """Return the number of files and their size for each value of a field of `Use`, the largest size first."""
        sums = defaultdict[str, list[int]](lambda: [0, 0])
        for entry in self.entries:
            sums[getattr(entry, what)][0] += entry.files
            sums[getattr(entry, what)][1] += entry.bytes
        ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
        return {name: (count, size) for name, (count, size) in ordered}


def disk_use(root: str) -> DiskUse:
    """Return the disk use of a root. Raises InputError if it does not exist."""
    root = require_root(root)
    listed, now = _without_second_names(files(root)), store_clock.now(root)
    newest = _newest(listed)
    sums = defaultdict[Use, list[int]](lambda: [0, 0])
    for file in listed:
        dataset, stage, source = _place(file.path)
        age = _age(now - newest[_group(file.path)])
        total = sums[Use(dataset, stage, source, age, 0, 0)]
        total[0] += 1
        total[1] += file.bytes
    entries = [replace(use, files=count, bytes=size) for use, (count, size) in sums.items()]
    entries.sort(key=lambda use: (-use.bytes, use.dataset, use.stage, use.source, use.age))
    return DiskUse(root, len(listed), sum(file.bytes for file in listed), tuple(entries))


def _without_second_names(listed: Iterable[StoredFile]) -> list[StoredFile]:
    """Return the files, with a size of 0 for all names of a file except the one for which its bytes count."""
    found, seen = list[StoredFile](), set[tuple[int, int]]()
    for file in sorted(listed, key=lambda file: (not file.path.startswith(f"{SOURCES}/"), file.path)):
        found.append(replace(file, bytes=0) if file.content in seen else file)
        if file.content is not None:
            seen.add(file.content)
    return found


def _newest(listed: Iterable[StoredFile]) -> dict[str, float]:
    newest = defaultdict[str, float](float)
    for file in listed:
        newest[_group(file.path)] = max(newest[_group(file.path)], file.changed)
    return newest


def _group(path: str) -> str:
    """Return the step to which a file belongs, or the file itself."""
    return step_of(path) or path


def _age(seconds: float) -> str:
    return next((name for days, name in AGES if seconds < days * DAY_SECONDS), OLDEST)


def _place(path: str) -> tuple[str, str, str]:
    """Return the dataset, the stage and the source for which a file counts."""
    parts, step = path.split("/"), step_of(path)
    if parts[0] == trash.FOLDER:
        return TRASH, TRASH, ALL
    if parts[0].startswith("."):
        return OWN, OWN, ALL
    if step is not None:
        inside = path.removeprefix(f"{step}/").split("/")
        own = inside[1] if inside[0] == DATA_FOLDER and len(inside) > 2 else ALL
        stage = urls.name(step).rpartition("-")[0]
        return (SHARED, stage, parts[1]) if parts[0] == SOURCES else (parts[0], stage, own)
    if len(parts) > 2 and TRAINING_RUN.fullmatch(parts[1]):
        return parts[0], "train", ALL
    return parts[0] if len(parts) > 1 else OTHER, LOGS if parts[1:2] == [RUNS] else OTHER, ALL
