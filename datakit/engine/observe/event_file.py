"""Appends events to a run's `events.jsonl`: numbers them, removes secrets, and rotates the file when it is full.

All events have four fields in common: `time` (seconds since 1970), `event` (its name), `run` (the run's id) and
`number` (1, 2, 3, ...). A file that would grow beyond 8 MiB is renamed to `events-00001.jsonl` (then 00002, ...), and
the run continues in a new `events.jsonl`. The 8 newest of these rotated files are kept, so the log of a run takes at
most 72 MiB. Each file begins with the run's first event (`run_started`, number 1), which describes the run.

On a disk, each event is appended immediately; if that fails, no part of it remains in the file. In an object store,
where appending is impossible, `publish` writes the whole file. All methods of EventFile are thread-safe, because the
heartbeat writes events from its own thread.

Cost: 60 us for an event on a disk, of which numbering the event and searching it for secrets take 20 us.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import orjson

from datakit.printable import escaped_json
from datakit.redaction import redacted_values
from datakit.storage import atomic, removal, urls

FILE_NAME = "events.jsonl"
ROTATED_NAME = "events-{:05d}.jsonl"
ROTATED = re.compile(r"events-\d{5,}\.jsonl")
MOST_BYTES = 8 << 20  # maximum size of a file, and of the driver's copy of it if the root is in an object store
KEPT = 8  # number of rotated files that are kept


class EventFile:
    """The log of one run in `directory`, which is named after the run."""

    def __init__(self, directory: str) -> None:
        self.run: str = urls.name(directory)
        self.url: str = urls.join(directory, FILE_NAME)
        self._file = _LocalFile(directory) if urls.is_local(directory) else _StoredFile(directory)
        self._lock = threading.Lock()
        self._first, self._events, self._rotated = b"", 0, 0

    def write(self, event: str, facts: dict[str, Any]) -> None:
        """Append an event. Raises StorageError, RootError."""
        with self._lock:
            line = self._line(event, facts)
            size = self._file.size()
            if size > len(self._first) and size + len(line) > MOST_BYTES:
                self._rotate()
                size = 0
            self._file.append(line if size else self._first + line)
            self._first = self._first or line
            self._events += 1

    def _line(self, event: str, facts: dict[str, Any]) -> bytes:
        common = {"time": time.time(), "event": event, "run": self.run, "number": self._events + 1}
        return escaped_json(_encoded(redacted_values(common | facts))).encode() + b"\n"

    def _rotate(self) -> None:
        self._rotated += 1
        self._file.rename(ROTATED_NAME.format(self._rotated))
        if self._rotated > KEPT:
            self._file.remove(ROTATED_NAME.format(self._rotated - KEPT))

    def publish(self) -> None:
        """Make all events so far visible in an object store. On a disk, they are visible already."""
        self._file.publish()


def _encoded(facts: dict[str, Any]) -> str:
    try:
        return orjson.dumps(facts).decode()
    except TypeError:  # an integer of more than 64 bits in a recipe, or a file name that is not UTF-8
        return json.dumps(facts, default=str)


class _File(ABC):
    """The file `events.jsonl` in a directory, and the rotated files beside it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.url = urls.join(directory, FILE_NAME)

    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def append(self, data: bytes) -> None: ...

    @abstractmethod
    def rename(self, name: str) -> None:
        """Give the file another name. The next event begins a new file."""

    def remove(self, name: str) -> None:
        removal.remove(urls.join(self.directory, name))

    def publish(self) -> None:  # noqa: B027 - optional
        pass


class _LocalFile(_File):
    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._path = Path(urls.local_path(self.url))

    def size(self) -> int:
        try:
            return os.path.getsize(self._path)
        except FileNotFoundError:
            return 0

    def append(self, data: bytes) -> None:
        with atomic.storage_errors(self.url):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                size, left = file.tell(), memoryview(data)
                try:
                    while left:
                        left = left[file.write(left) :]
                except BaseException:  # a full disk may accept only a part; a signal may come between two writes
                    os.ftruncate(file.fileno(), size)
                    raise

    def rename(self, name: str) -> None:
        with atomic.storage_errors(self.url):
            self._path.replace(self._path.with_name(name))


class _StoredFile(_File):
    """`_data` holds what `events.jsonl` is to contain."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._data, self._publishing = bytearray(), threading.Lock()

    def size(self) -> int:
        return len(self._data)

    def append(self, data: bytes) -> None:
        self._data += data

    def rename(self, name: str) -> None:
        atomic.replace_bytes(bytes(self._data), urls.join(self.directory, name))
        self._data = bytearray()

    def publish(self) -> None:
        with self._publishing:  # an older state must not replace a newer one
            if self._data:
                atomic.replace_bytes(bytes(self._data), self.url)
