"""Downloads one file over HTTP(S): in parallel ranges, continuing where an earlier attempt stopped, and verified.

The file is divided into parts of PART_BYTES. Up to CONNECTIONS parts are requested at a time, each by a range; if the
connection breaks, the rest of the part is requested. If the server does not answer with ranges, or compresses the body,
the file is requested as a whole, by one connection; after a break, it then starts again from its first byte.

The target is created only if all of these hold: the size is the listed one; every answer stated the listed version; and
the hash of the content is the listed one or, if no hash is known, the server still states the listed version after the
last byte. If only the hash differs, a proxy may have damaged the bytes, so the file is requested once more as a whole.

Cost: one request per part, and one read of the finished file. Memory: some 100 kB per connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from datakit.download.web.content_hash import hash_both
from datakit.download.web.partial_file import PartialFile, partial_file
from datakit.download.web.patience import ENOUGH, REAL, Clock, PassingError, Patience
from datakit.download.web.requests import Answer, NoRangesError, RemoteFile, Requests
from datakit.errors import CorruptError
from datakit.storage import atomic
from datakit.storage.atomic import Committed
from datakit.storage.io_errors import storage_errors

CONNECTIONS = 4
REPORT_SECONDS = 0.5


class _StoppedError(Exception):
    """Another connection has failed."""


def fetch(
    file: RemoteFile, target: str, folder: Path, progress: Callable[[int], None] = lambda done: None,
    clock: Clock = REAL,
) -> Committed:  # fmt: skip
    """Copy a file to `target`. Raises ChangedInputError, CorruptError, StorageError, NotFoundError or RootError.

    folder: a local directory for the bytes that have arrived; whatever they are, they stay there if this fails.
    progress: called with the number of bytes that have arrived.
    """
    assert file.size is not None, "the file was listed"
    version = file.content or file.etag or file.last_modified
    with storage_errors(target), partial_file(folder, target, file.size, version) as partial:
        transfer = _Transfer(file, partial, progress, clock)
        progress(partial.received())
        xxh3 = transfer.verified()
        return atomic.commit_written(partial.path, target, xxh3, file.size)


@dataclass
class _Transfer:
    file: RemoteFile
    partial: PartialFile
    progress: Callable[[int], None]
    clock: Clock
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._requests = Requests(self.file, self.clock)

    def _patience(self) -> Patience:
        return Patience(self.file.name, replace(self.clock, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        """Wait; give up within a second if another connection has failed."""
        while seconds > 0:
            if self._stopped.is_set():
                raise _StoppedError
            self.clock.sleep(min(1.0, seconds))
            seconds -= 1.0

    def verified(self) -> str:
        """Get the missing bytes, verify the file, and return its xxh3-128."""
        self._complete()
        xxh3, content = hash_both(self.partial.path, self.file.content)
        if content != self.file.content:
            self._whole()
            xxh3, content = hash_both(self.partial.path, self.file.content)
        if content != self.file.content:
            self.partial.forget()
            raise CorruptError(
                f"{self.file.name}: the content that arrived has the hash {content}, but {self.file.content} was "
                "listed, twice in a row; run again, or report it to the owner of the data"
            )
        if not self.file.content:
            self._require_same_version()
        return xxh3

    def _complete(self) -> None:
        if not self.file.size:
            self._whole()
            return
        try:
            parts = self.partial.missing_parts()
            if len(parts) == 1:
                self._fill(parts[0])
            elif parts:
                self._fill_all(parts)
        except NoRangesError:
            self._whole()

    def _fill_all(self, parts: list[int]) -> None:
        queue = SimpleQueue[int]()
        for number in parts:
            queue.put(number)
        self._stopped.clear()
        with ThreadPoolExecutor(min(CONNECTIONS, len(parts))) as pool:
            running = {pool.submit(self._fill_from, queue) for _ in range(min(CONNECTIONS, len(parts)))}
            try:
                self._watch(running)
            except BaseException:
                self._stopped.set()
                raise

    def _watch(self, running: set[Future[None]]) -> None:
        while running:
            done, running = wait(running, REPORT_SECONDS, FIRST_EXCEPTION)
            self.progress(self.partial.received())
            errors = [error for error in map(Future.exception, done) if error is not None]
            if errors:
                raise next((error for error in errors if not isinstance(error, _StoppedError)), errors[0])

    def _fill_from(self, queue: SimpleQueue[int]) -> None:
        try:
            while True:
                self._fill(queue.get_nowait(), report=False)
        except Empty:
            return

    def _fill(self, number: int, report: bool = True) -> None:
        patience = self._patience()
        while missing := self.partial.missing(number):
            try:
                self._get_rest(number, report)
            except PassingError as error:
                if missing - self.partial.missing(number) >= ENOUGH:
                    patience.succeeded()
                patience.wait(error)

    def _get_rest(self, number: int, report: bool) -> None:
        start, stop = self.partial.part(number)
        start += self.partial.done[number]
        with self._requests.get(start, stop) as answer:
            if answer.response.status_code == 200 and (start > 0 or stop < self.partial.size or answer.coding):
                raise NoRangesError
            self._require_size(answer)
            for data in answer.body(self.clock):
                if len(data) > self.partial.missing(number):
                    raise self.file.changed(f"the server sent more than the {stop - start} bytes that were requested")
                self.partial.write(number, data)
                if report:
                    self.progress(self.partial.received())
                elif self._stopped.is_set():
                    raise _StoppedError
        if missing := self.partial.missing(number):
            raise PassingError(f"the connection closed {missing} bytes before the end of a range")

    def _whole(self) -> None:
        """Get the whole file by one connection."""
        self._stopped.clear()
        patience = self._patience()
        while True:
            self.partial.forget()
            try:
                with self._requests.get(ranged=False) as answer:
                    self._require_size(answer)
                    self._write_whole(answer)
                if self.partial.received() == self.partial.size:
                    return
                raise PassingError(f"the server sent {self.partial.received()} of {self.partial.size} bytes")
            except PassingError as error:
                patience.wait(error)
            except NoRangesError as error:
                raise self.file.changed("the server answered with a range that was not requested") from error

    def _write_whole(self, answer: Answer) -> None:
        number = 0
        for data in answer.body(self.clock):
            while data:
                while number < len(self.partial.done) and not self.partial.missing(number):
                    number += 1
                if number == len(self.partial.done):
                    raise self.file.changed(f"it is longer than the {self.partial.size} bytes that were listed")
                count = min(len(data), self.partial.missing(number))
                self.partial.write(number, data[:count])
                data = data[count:]
            self.progress(self.partial.received())

    def _require_size(self, answer: Answer) -> None:
        if answer.total is not None and answer.total != self.partial.size:
            raise self.file.changed(f"the server has {answer.total} bytes, but {self.partial.size} were listed")

    def _require_same_version(self) -> None:
        """Ask for the version once more: the file may have been replaced after the last answer began."""
        patience = self._patience()
        while True:
            try:
                with self._requests.get(0, 1) as answer:
                    self._require_size(answer)
                return
            except NoRangesError:
                return  # the statement about the version was right, and the size cannot be known
            except PassingError as error:
                patience.wait(error)
