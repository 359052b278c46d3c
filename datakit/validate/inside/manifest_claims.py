"""Recomputes what a manifest states: fingerprint, identity, totals, quarantined records, and the order, sources and
numbers of the partitions.

An altered manifest is refused whenever it is read, because it holds its own checksum. The checks in this module find an
alteration even if that checksum was changed to match. A manifest of format 1 does not hold the stage's format version,
so its fingerprint cannot be computed again. If the name of a directory has the form of a step's name, it must end in
the first digits of the fingerprint; a copy of a step may have any other name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby, pairwise

import msgspec

from datakit.errors import NotFoundError
from datakit.storage import urls
from datakit.storage.fingerprint import identity, short
from datakit.storage.json_data import decode
from datakit.storage.manifest import UNSEALED, Manifest, Partition, computed_fingerprint, data_path, totals_of
from datakit.validate.finding import Result
from datakit.validate.subject import Subject

RECORDS = "records.jsonl"
PARTITIONED = (
    "normalize",
    "signatures",
    "rules",
    "dedup",
    "passages",
    "select",
    "consolidate",
    "tokenize",
)  # stages with outputs below `data/`
NUMBERED = re.compile(r"part-(\d+)-of-(\d+)\.parquet")
NAMED = re.compile(r"(.+)-[0-9a-f]{12}")


class _Skipped(msgspec.Struct, frozen=True):
    """The fields of a `QuarantinedRecord` that are checked. That class itself is not used: its module needs pyarrow."""

    file: str
    position: int
    records: int = 1


def check(step: Subject, result: Result) -> None:
    """Find every statement of a manifest that contradicts other statements or the list of quarantined records."""
    manifest, url = step.manifest, step.manifest_url
    result.count("manifest")
    expected = computed_fingerprint(manifest)
    if expected is None:
        result.skip("a manifest of format 1 states no format version, so its fingerprint cannot be computed again")
    elif expected != manifest.fingerprint:
        result.find(url, _wrong("fingerprint", manifest.fingerprint, "its version, parameters and inputs", expected))
    name = urls.name(step.directory)
    named = NAMED.fullmatch(name)
    if named and named[1] == manifest.stage and name != f"{manifest.stage}-{short(manifest.fingerprint)}":
        result.find(url, f"belongs in a directory named {manifest.stage}-{short(manifest.fingerprint)}")
    _check_identity(step, result)
    if manifest.stage in PARTITIONED:
        if manifest.totals != totals_of(manifest.partitions):
            result.find(url, _wrong("total", manifest.totals, "its partitions", totals_of(manifest.partitions)))
        for difference in _partition_differences(manifest):
            result.find(url, difference)


def _wrong(what: str, said: object, basis: str, computed: object) -> str:
    return f"says that the {what} is {said}, but {basis} give {computed}"


def _check_identity(step: Subject, result: Result) -> None:
    manifest, url, records, quarantined = step.manifest, step.manifest_url, 0, []
    if manifest.quarantine.records:
        listed = step.url(f"{manifest.quarantine.path.rstrip('/')}/{RECORDS}")
        try:
            entries = [decode(line, _Skipped) for line in urls.read_bytes(listed).splitlines()]
        except (NotFoundError, msgspec.DecodeError):
            stated = manifest.quarantine.records
            result.find(listed, f"is missing or damaged; the manifest says {stated} records")
            return
        quarantined = [f"{entry.file}:{entry.position}" for entry in entries]
        records = sum(entry.records for entry in entries)
        result.count("quarantined record", records)
    if records != manifest.quarantine.records:
        stated = manifest.quarantine.records
        result.find(url, _wrong("number of quarantined records", stated, "the list's entries", records))
    expected = identity(manifest.fingerprint, quarantined, manifest.model_answers)
    if expected != manifest.identity:
        result.find(
            url, _wrong("identity", manifest.identity, "its fingerprint, quarantined records and answers", expected)
        )


def _partition_differences(manifest: Manifest) -> Iterator[str]:
    """Yield a message for each partition whose source differs from the one in its path, or that is out of order."""
    for partition in manifest.partitions:
        if partition.path.rpartition("/")[0] not in _folders(manifest, partition):
            yield f"says that {partition.path} belongs to source {partition.source!r}"
    yield from _incomplete(manifest)
    for what, key in (("source", _source), ("bucket", _bucket)):
        groups = [name for name, _ in groupby(manifest.partitions, key=key)]
        if len(set(groups)) < len(groups):
            yield f"lists partitions of other {what}s between those of one {what}"
    for parts in (list(found) for _, found in groupby(manifest.partitions, key=_bucket)):
        for before, after in pairwise(parts):
            if _number(before) >= _number(after):
                yield f"lists {after.path} after {before.path}"
        known = [part for part in parts if part.first_id is not None and part.last_id is not None]
        for before, after in pairwise(known):
            if (before.last_id or "") >= (after.first_id or ""):
                yield f"says that {after.path} begins at or before the end of {before.path}"


def _incomplete(manifest: Manifest) -> Iterator[str]:
    """Yield a message for each source whose partitions, numbered as in `part-00002-of-00004`, are not all listed."""
    for source, parts in groupby(manifest.partitions, key=lambda part: part.source):
        numbers = [NUMBERED.fullmatch(urls.name(part.path)) for part in parts]
        found = [(int(match[1]), int(match[2])) for match in numbers if match]
        if found and found != [(index, found[0][1]) for index in range(found[0][1])]:
            yield f"lists {len(found)} of the {found[0][1]} partitions of source {source!r}"


def _source(part: Partition) -> str:
    return part.source


def _bucket(part: Partition) -> tuple[str, str | None]:
    return part.source, part.bucket


def _folders(manifest: Manifest, part: Partition) -> tuple[str, ...]:
    """Return a partition's possible folders: `data/<source>/` or, for a document bucket, `data/<source>/<bucket>/`; in
    format 1, also `<source>/` and the step's folder.
    """
    now = data_path(part.source, part.bucket or "").rstrip("/")
    return (now, part.source, "") if manifest.format == UNSEALED else (now,)


def _number(partition: Partition) -> tuple[int, str]:
    name = urls.name(partition.path)
    return len(name), name
