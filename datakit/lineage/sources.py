"""Describes the sources of a lineage: the URL, the revision, the license and the files of each.

A download's manifest lists the files and, if the source is pinned to a revision, states its URL and this revision. The
URL of any other source is only in the logs of runs, because a step's identity must not depend on where its files are. A
log describes a download if it names the download's directory. If several logs name it, the newest one is used. The
license comes from `latest.json`, which the last complete run of a dataset wrote, or, if this file states none, from the
log. The query strings of URLs are removed, because they may contain signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datakit.engine.observe.event_file import FILE_NAME as EVENTS
from datakit.engine.observe.event_tail import Event, EventTail
from datakit.pipeline.root_layout import RUNS
from datakit.redaction import redacted
from datakit.signed_urls import split_query
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.latest import read_latest
from datakit.storage.manifest import Manifest

FILES_SHOWN = 20


@dataclass(frozen=True)
class SourceFile:
    """A raw file: its path within the source, its size, and its hash or the store's checksum."""

    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class SourceRecord:
    """A source. url, revision, license: None if they are not recorded. identity: that of the download. files: the
    number of raw files. first_files: the first FILES_SHOWN of them. checksum: that of the download's manifest, which
    holds the checksums of all files.
    """

    name: str
    url: str | None
    revision: str | None
    license: str | None
    identity: str
    checksum: str
    files: int
    bytes: int
    first_files: tuple[SourceFile, ...]


def read_sources(downloads: Mapping[str, Manifest], homes: Sequence[str]) -> tuple[SourceRecord, ...]:
    """Return the sources that these downloads (manifests by directory) read. homes: the directories of the datasets
    whose runs may have made the downloads.
    """
    logged = _Logged(list(dict.fromkeys(homes)))
    return tuple(_source(directory, manifest, logged) for directory, manifest in downloads.items())


def _source(directory: str, manifest: Manifest, logged: _Logged) -> SourceRecord:
    parameters, found = manifest.parameters, logged.definition(directory, manifest.dataset)
    url, license_ = parameters.get("url") or found.get("url"), found.get("license")
    return SourceRecord(
        name=manifest.dataset,
        url=None if url is None else redacted(split_query(url)[0]),
        revision=parameters.get("revision"),
        license=logged.licenses.get(manifest.dataset, license_),
        identity=manifest.identity,
        checksum=manifest.checksum,
        files=len(manifest.partitions),
        bytes=manifest.totals.bytes,
        first_files=tuple(SourceFile(part.path, part.bytes, part.xxh3) for part in manifest.partitions[:FILES_SHOWN]),
    )


class _Logged:
    """The definitions of sources in the logs of datasets' runs. Each log is read at most once."""

    def __init__(self, homes: list[str]) -> None:
        self.licenses: dict[str, str] = {}
        self._definitions: list[tuple[set[str], dict[str, dict[str, Any]]]] = []
        for home in homes:
            latest = read_latest(home)
            self.licenses |= latest.licenses if latest else {}
            self._definitions += [_read_log(urls.join(home, RUNS, run)) for run in _newest_first(home)]

    def definition(self, directory: str, name: str) -> Mapping[str, Any]:
        """Return the definition of a source, as a table of a recipe, from the newest log that names this download; {}
        if no log names it.
        """
        step = urls.name(directory)
        return next((tables[name] for steps, tables in self._definitions if step in steps and name in tables), {})


def _newest_first(home: str) -> list[str]:
    return list(reversed(subdirectories(urls.join(home, RUNS))))


def _read_log(directory: str) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """Return the directory names of the downloads in a run's log, and the source tables of its recipe, by name."""
    steps, tables = set[str](), dict[str, dict[str, Any]]()
    for event in read_events(directory):
        if event["event"] == "run_started":
            tables = _tables(event.get("definition"))
        elif event.get("stage") == "download" and isinstance(event.get("directory"), str):
            steps.add(urls.name(event["directory"]))
    return steps, tables


def _tables(definition: object) -> dict[str, dict[str, Any]]:
    """Return the source tables of a recipe by name, without those that a damaged log made unusable."""
    found = definition.get("sources") if isinstance(definition, dict) else None
    tables = [table for table in found if isinstance(table, dict)] if isinstance(found, list) else []
    return {table["name"]: _texts(table) for table in tables if isinstance(table.get("name"), str)}


def _texts(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in ("url", "license") or isinstance(value, str)}


def read_events(directory: str) -> Iterator[Event]:
    """Yield the events of a run in order, each once, from all files of its log. Lines that cannot be read (a killed run
    may leave half a line) are skipped.
    """
    log = EventTail(urls.join(directory, EVENTS), rotated=True)
    yield from log.read()
    while log.behind:
        yield from log.read()
