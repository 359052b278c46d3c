"""Stores the answers of a model server below the root, so that no answer is paid for twice.

    <root>/.answers/<12 digits>/settings.json            the settings of the requests, whose hash is in the name
    <root>/.answers/<12 digits>/<range>/0000000001.jsonl  answers about documents whose ids begin with the same bits
    <root>/.answers/<12 digits>/spending/                 the account of all requests (`spending.py`)
    <root>/.answers/<12 digits>/locks/                    a lock for each partition that is being asked about

An answer is found by the document's id, which is the hash of its text, and by the settings. So it serves every source,
recipe and later run that asks the same question about the same text. A file holds the answers of a batch of documents.

The files of a range are numbered without gaps. A writer creates the next number, which fails if the name is taken. Then
it reads the file that took the name, leaves out the documents that are answered there, and tries the next number. So
the first answer about a document is kept, even if several processes ask at the same time. Only a failure can be
followed by another line about its document: it is asked about again if the recipe allows more attempts than were made.

Every store has RANGES ranges, since partitions of any source and of any number must find their answers in it. With 256,
a partition of a source with 1,024 partitions reads four times what it needs, which is some 40 MB if there are 100
million answers; more ranges would spread the answers about a small source over more files. Documents are asked about in
the order of their ids, so a batch of a large partition has answers of one or two ranges.

Memory: the ids and answers of the documents of one partition, and one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from datakit.annotate.model_server.config import ModelServerConfig
from datakit.errors import CorruptError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import canonical_json
from datakit.storage.ids import HEX_DIGITS
from datakit.storage.json_data import decode_errors

SETTINGS = "settings.json"
RANGE_BITS = 8  # the number of leading bits of an id that choose its range
RANGES = 1 << RANGE_BITS
NUMBER_DIGITS = 10
BATCH = 64  # answers that a task stores at once


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored answer about a document, or its failure. id: the document's id. answer: the valid answer, unchanged;
    None if there is none. failure: why not. attempts: how often the server was asked before the document counted as
    failed.
    """

    id: str
    answer: str | None = None
    failure: str = ""
    attempts: int = 0

    def settles(self, attempts: int) -> bool:
        """Return True if the document is not to be asked about again when a recipe allows so many attempts."""
        return self.answer is not None or self.attempts >= attempts


class _Settings(msgspec.Struct):
    """The content of `settings.json`. ranges: always RANGES, unless another version of datakit wrote the answers."""

    settings: dict[str, object]
    ranges: int = 0


class AnswerStore:
    """The answers to the requests with certain settings. It remembers those about the documents that were read last."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._ends: dict[int, int] = {}  # range -> the number of the last file that was read
        self._wanted: set[str] = set()  # the documents that were read last, and those that were added since
        self._known: dict[str, Answer] = {}  # what the files say about these

    @classmethod
    def open(cls, answers: str, config: ModelServerConfig) -> AnswerStore:
        """Open the store in the folder `answers` of a root; create it if there is none."""
        found = cls.find(answers, config)
        if found is None:
            new = canonical_json(msgspec.to_builtins(_Settings(config.content(), RANGES))) + b"\n"
            atomic.create_bytes(new, _settings_url(answers, config))
            found = cls.find(answers, config)
        assert found is not None, "the store has just been created"
        return found

    @classmethod
    def find(cls, answers: str, config: ModelServerConfig) -> AnswerStore | None:
        """Return the store, or None if nothing has been asked yet. Raises CorruptError."""
        url = _settings_url(answers, config)
        if not urls.exists(url):
            return None
        try:
            with decode_errors():
                found = msgspec.json.decode(urls.read_bytes(url), type=_Settings)
        except msgspec.DecodeError as error:
            raise CorruptError(f"{url} is damaged: {error}; restore it") from error
        if canonical_json(found.settings) != canonical_json(config.content()):
            raise CorruptError(f"{url} holds other settings than its name says; restore it")
        if found.ranges != RANGES:
            raise CorruptError(
                f"{url}: another version of datakit wrote these answers, in another layout; use that version, or "
                "remove the folder to ask again"
            )
        return cls(urls.parent(url))

    def read(self, ids: Sequence[str], report: Callable[[], None] = lambda: None) -> dict[str, Answer]:
        """Return the answers about these documents, by id. `report` is called after each file. Raises CorruptError."""
        self._ends, self._wanted, self._known = {}, set(ids), {}
        for number in sorted({self._range_of(one) for one in ids}):
            for file in urls.listing(self._range_url(number)):
                end = int(urls.name(file.path)[:NUMBER_DIGITS])
                self._ends[number] = max(self._ends.get(number, 0), end)
                self._learn(_read(file.url))
                report()
        return dict(self._known)

    def add(self, answers: Sequence[Answer]) -> dict[str, Answer]:
        """Store answers; documents that have one already keep it. `read` the documents before. Return, for each of
        them, the answer that is stored now, which may be that of another process.
        """
        self._wanted.update(one.id for one in answers)
        by_range: dict[int, dict[str, Answer]] = {}
        for one in answers:
            by_range.setdefault(self._range_of(one.id), {})[one.id] = one
        for number, new in by_range.items():
            self._append(number, new)
        return {one.id: self._known[one.id] for one in answers}

    def _append(self, number: int, new: dict[str, Answer]) -> None:
        while new := {name: one for name, one in new.items() if self._is_news(one)}:
            following = self._ends.get(number, 0) + 1
            url = urls.join(self._range_url(number), f"{following:0{NUMBER_DIGITS}d}.jsonl")
            lines = msgspec.json.Encoder().encode_lines([new[name] for name in sorted(new)])
            if atomic.create_bytes(lines, url):
                atomic.sync_directories([self._range_url(number)])
            self._ends[number] = following
            self._learn(_read(url))  # our answers, or those of the process that was faster

    def _learn(self, answers: Iterable[Answer]) -> None:
        for one in answers:
            if one.id in self._wanted and self._is_news(one):
                self._known[one.id] = one

    def _is_news(self, one: Answer) -> bool:
        """Return True unless the document has an answer, or has failed as often as in `one`."""
        before = self._known.get(one.id)
        return before is None or (before.answer is None and (one.answer is not None or one.attempts > before.attempts))

    def _range_of(self, identity: str) -> int:
        return int(identity, 16) >> (4 * HEX_DIGITS - RANGE_BITS)

    def _range_url(self, number: int) -> str:
        return urls.join(self.folder, f"{number:04d}-of-{RANGES:04d}")


def open_documents(ids: Sequence[str], stored: Mapping[str, Answer], attempts: int) -> list[str]:
    """Return the documents that are to be asked about."""
    return [one for one in ids if one not in stored or not stored[one].settles(attempts)]


def _settings_url(answers: str, config: ModelServerConfig) -> str:
    return urls.join(answers, config.store_name(), SETTINGS)


def _read(url: str) -> Iterator[Answer]:
    try:
        with decode_errors():
            yield from msgspec.json.Decoder(Answer).decode_lines(urls.read_bytes(url))
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} is damaged: {error}; restore it, or remove it to ask again") from error
