"""Asks the model servers about the documents of one normalized partition, stores the answers as they come, and writes
for each server a table of answers for the next phase.

Requests run concurrently in threads of the child. The main thread reads the texts, stores the answers in batches of
BATCH (or after BATCH_SECONDS), and reports progress, so a slow server is not taken for a hang. A crash loses at most
one batch for each task. Documents whose answer is stored are not sent.

A partition is locked while it is being asked about, if the root is on a disk: a second driver waits, and then finds the
answers. In an object store, two drivers at the same time may both pay for a document; the first answer wins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from datakit.annotate.annotator import TEXT
from datakit.annotate.model_server.answer_store import BATCH, Answer, AnswerStore, open_documents
from datakit.annotate.model_server.client import Client
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.dialogue import Dialogue, Pause
from datakit.annotate.model_server.key import server_key
from datakit.annotate.model_server.request_body import sent_text
from datakit.annotate.model_server.spending import Allowance, SpentError
from datakit.engine.task import OutputFile, QuarantinedRecord, TaskContext, TaskResult
from datakit.errors import TaskError
from datakit.storage import locks, urls
from datakit.storage.fingerprint import config_of
from datakit.storage.ids import OrderedIds
from datakit.storage.parquet import ShardWriter, open_shard, read_group

BATCH_SECONDS = 20.0
POLL_SECONDS = 1.0
HOPELESS = 20  # the task ends if so many documents have failed and none was answered
FOLDER = "exchange/answers"
ID, ANSWER = "id", "answer"
SCHEMA = pa.schema([pa.field(ID, pa.string(), nullable=False), pa.field(ANSWER, pa.string(), nullable=False)])


@dataclass
class _Partition:
    """The partition and its documents. ids: of all documents, in order. failures: why documents have no answer, by id;
    such documents are not sent to further servers.
    """

    url: str
    file: str
    ids: list[str]
    failures: dict[str, str] = field(default_factory=dict)
    bytes_read: int = 0

    def answered(self, stored: Mapping[str, Answer]) -> list[str]:
        """Return the documents with an answer, except those that are left out: the root may hold answers about them
        from another recipe, and the identity of the step must not depend on these.
        """
        known = [one for one in self.ids if one in stored and stored[one].answer is not None]
        return [one for one in known if one not in self.failures]

    def texts(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the id and the text of each of these documents."""
        with open_shard(self.url) as shard:
            for group in range(shard.metadata.num_row_groups if wanted else 0):
                table = read_group(shard, group, self.url, [ID, TEXT])
                for identity, text in zip(table[ID], table[TEXT], strict=True):
                    if (name := identity.as_py()) in wanted:
                        yield name, text.as_buffer().to_pybytes()


def ask_partition(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Get the answers about a partition's documents from all servers, in the order of their names.

    shared["servers"]: the settings of each server, by name. shared["answers"]: the folder of the answers in the root,
    relative to the step's directory.
    """
    url = urls.join(context.step_directory, arguments["documents"])
    part, outputs, digests = _partition(url, arguments["file"]), list[OutputFile](), dict[str, str]()
    answers = urls.join(context.step_directory, shared["answers"])
    for name, values in sorted(shared["servers"].items()):
        config = config_of(values, ModelServerConfig)
        server = _Server(name, config, answers, part, context)
        stored, why_open = server.answers()
        if why_open:
            left = len(server.wanted(stored))
            done = len(part.ids) - left  # asked about, found, or left out because of an earlier server
            return TaskResult(records=done, bytes_read=part.bytes_read, open=left, why_open=why_open)
        for one in part.ids:
            if one in stored and stored[one].answer is None:
                part.failures.setdefault(one, f"model server {name}: {stored[one].failure}")
        digests[name] = _digest(part, stored)
        # With more attempts allowed, a later run of this task may have more answers, so their hash is part of the path.
        path = f"{FOLDER}/{name}/{digests[name]}/{urls.name(part.file)}"
        outputs.append(_write(urls.join(context.step_directory, path), path, part, stored))
    left_out = tuple(
        QuarantinedRecord(part.file, row, part.failures[one])
        for row, one in enumerate(part.ids)
        if one in part.failures
    )
    counters = {"annotate/quarantined": len(left_out)}
    return TaskResult(
        tuple(outputs), counters, {"digests": digests}, left_out, records=len(part.ids), bytes_read=part.bytes_read
    )


def _partition(url: str, file: str) -> _Partition:
    """Read the ids of a partition. Raises CorruptError if they do not ascend."""
    ids, ordered = list[str](), OrderedIds(url)
    with open_shard(url) as shard:
        for group in range(shard.metadata.num_row_groups):
            table = read_group(shard, group, url, [ID])
            if table.num_rows:
                ordered.parse(table[ID])
                ids += table[ID].to_pylist()
    return _Partition(url, file, ids)


@dataclass
class _Server:
    """Asks one server about a partition."""

    name: str
    config: ModelServerConfig
    answers_folder: str
    part: _Partition
    context: TaskContext
    _pending: list[Answer] = field(default_factory=list)
    _stored: dict[str, Answer] = field(default_factory=dict)
    _flushed: float = field(default_factory=time.monotonic)
    _done: int = 0
    _succeeded: bool = False

    def answers(self) -> tuple[dict[str, Answer], str]:
        """Return the stored answers about the documents, by id. If a budget is used up, some are missing, and the
        second value is the reason.
        """
        store = AnswerStore.open(self.answers_folder, self.config)
        with self._locked(store.folder):
            self._stored = store.read(self.part.ids, self._report)
            self._succeeded = any(one.answer is not None for one in self._stored.values())
            wanted = self.wanted(self._stored)
            self._done = len(self.part.ids) - len(wanted)
            why_open = self._ask(store, wanted) if wanted else ""
        return self._stored, why_open

    def wanted(self, stored: Mapping[str, Answer]) -> set[str]:
        """Return the documents that the server is to be asked about."""
        return {one for one in self.part.ids if one not in self.part.failures} & {
            *open_documents(self.part.ids, stored, self.config.attempts)
        }

    def _ask(self, store: AnswerStore, wanted: set[str]) -> str:
        """Ask about these documents; return why some stay open, or ""."""
        allowance = Allowance(self.name, self.config, store.folder, len(wanted))
        pause, client = Pause(), Client(self.config, server_key(self.name, self.config))
        dialogue = Dialogue(self.config, client, allowance, pause, self.config.answer_format())
        texts, running, left = self.part.texts(wanted), dict[Future[Answer], None](), len(wanted)
        with ExitStack() as stack:
            stack.callback(client.close)
            stack.callback(allowance.close)
            pool = stack.enter_context(ThreadPoolExecutor(self.config.concurrency))
            stack.callback(pause.stop.set)
            try:
                while left or running:
                    while left and len(running) < 2 * self.config.concurrency:
                        identity, text = next(texts)
                        self.part.bytes_read += len(text)
                        running[pool.submit(dialogue.ask, identity, sent_text(text, self.config.max_bytes))] = None
                        left -= 1
                    self._collect(running)
                    self._store(store)
            except SpentError as error:
                pause.stop.set()
                self._rescue(running)
                return str(error)
            except BaseException:
                pause.stop.set()
                self._rescue(running)
                self._pending = self._pending if self._succeeded else []
                raise
            finally:
                self._store(store, last=True)
        return ""

    def _collect(self, running: dict[Future[Answer], None]) -> None:
        """Wait until requests end, and keep their answers. Raises what they have raised."""
        done, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
        self._report()
        failure: BaseException | None = None
        for one in done:
            del running[one]
            if (error := one.exception()) is not None:
                failure = failure or error
                continue
            self._keep(one.result())
        if failure is not None:
            raise failure
        failed = [one for one in self._pending if one.answer is None]
        if not self._succeeded and len(failed) >= HOPELESS:
            raise TaskError(
                f"model server {self.name!r} ({self.config.host}): the first {len(failed)} documents have failed; the "
                f"last one: {failed[-1].failure}; correct the recipe or the server, and run again"
            )

    def _report(self) -> None:
        self.context.report(self._done, self.part.bytes_read)

    def _keep(self, one: Answer) -> None:
        self._pending.append(one)
        self._succeeded |= one.answer is not None
        self._done += 1

    def _rescue(self, running: dict[Future[Answer], None]) -> None:
        """Keep the answers of the requests that are under way: they are paid for."""
        for one in running:
            one.cancel()
        while running:
            done, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
            self._report()
            for one in done:
                del running[one]
                if not one.cancelled() and one.exception() is None:
                    self._keep(one.result())

    def _store(self, store: AnswerStore, last: bool = False) -> None:
        """Store the answers that wait, if it is time. Failures wait until a document was answered, as all documents
        fail if the recipe is wrong.
        """
        due = len(self._pending) >= BATCH or time.monotonic() - self._flushed > BATCH_SECONDS
        if self._pending and (last or (due and self._succeeded)):
            self._stored |= store.add(self._pending)
            self._pending.clear()
            self._flushed = time.monotonic()

    @contextmanager
    def _locked(self, folder: str) -> Iterator[None]:
        """Lock the partition while it is being asked about; wait for another process that holds the lock."""
        if not urls.is_local(folder):
            yield
            return
        path = Path(urls.local_path(urls.join(folder, "locks", urls.name(self.part.file))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        unlockable = 0  # tries that have failed although nobody held the lock: there are no locks on this file system
        while (lock := locks.take(path)) is None and unlockable < 3:
            unlockable += not locks.is_locked(path)
            self._report()
            time.sleep(POLL_SECONDS / 4)
        try:
            yield
        finally:
            if lock is not None:
                locks.release(lock)


def _write(url: str, path: str, part: _Partition, stored: Mapping[str, Answer]) -> OutputFile:
    """Write the answers about the partition's documents, in their order."""
    found = [(one, stored[one].answer) for one in part.answered(stored)]
    columns = [pa.array([row[column] for row in found], pa.string()) for column in (0, 1)]
    with ShardWriter(url, SCHEMA) as writer:
        writer.write(pa.Table.from_arrays(columns, schema=SCHEMA))
    return OutputFile(path, writer.info.bytes, writer.info.xxh3, writer.info.rows)


def _digest(part: _Partition, stored: Mapping[str, Answer]) -> str:
    """Return the hash of the answers about the partition's documents."""
    digest = xxhash.xxh3_128()
    for one in part.answered(stored):
        data = (stored[one].answer or "").encode("utf-8", "surrogatepass")
        digest.update(f"{one} {len(data)} ".encode() + data)
    return digest.hexdigest()
