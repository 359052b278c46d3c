"""Defines, writes and reads `caches.json` in the directory of a training run: the caches that the run reads.

    {"../../shelf": ["../../shelf/tokenize-0123456789ab", "<identity>"], ..., "format": ["datakit.caches/1", ""]}

A key is the directory of the dataset whose current cache the run reads or, if the run file names a cache itself, that
of the cache. The first versions of datakit recorded only caches that were found through a dataset. A record that names
every cache is therefore marked by the key `format`. Those versions ignore the key, because they take it for a dataset
that no run file names. `datakit gc` relies only on records with this mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from datakit.errors import CorruptError, NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.json_data import decode

FILE_NAME = "caches.json"
MARK, FORMAT = "format", "datakit.caches/1"


@dataclass(frozen=True)
class TrainingRecord:
    """The content of a record. caches: (directory, identity) of each cache, keyed by the directory of its dataset or by
    its own; all paths are relative to the run's directory. complete: True if every cache of the run is recorded.
    """

    caches: Mapping[str, tuple[str, str]]
    complete: bool


def write_record(directory: str, caches: Mapping[str, tuple[str, str]]) -> None:
    """Record all caches of the training run whose directory this is."""
    content = {**caches, MARK: (FORMAT, "")}
    data = msgspec.json.format(msgspec.json.encode(content, order="sorted"), indent=1) + b"\n"
    atomic.replace_bytes(data, urls.join(directory, FILE_NAME))


def read_record(directory: str) -> TrainingRecord | None:
    """Return the record of the training run in a directory; None if it has none. Raises CorruptError."""
    url = urls.join(directory, FILE_NAME)
    try:
        content = decode(urls.read_bytes(url), dict[str, tuple[str, str]])
    except NotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptError(
            f"{url} cannot be read: {error}; remove it, and resume the training run, which then reads and records the "
            "current caches of its datasets"
        ) from error
    mark = content.pop(MARK, None)
    return TrainingRecord(content, mark is not None)
