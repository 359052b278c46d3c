"""Recomputes what a manifest states (fingerprint, identity, totals, and the order and sources of the partitions),
compares the manifests of the step's inputs with the recorded checksums, and finds files that are not in the manifest.

An altered manifest is refused whenever it is read, because it holds its own checksum. The checks in this module find an
alteration even if that checksum was changed to match. A manifest of format 1 holds neither the stage's format version
nor checksums of manifests, so the checks that need them are skipped. An input that no longer exists is not compared,
because a step may be moved without its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

import msgspec

from datakit.errors import CorruptError, NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import identity
from datakit.storage.json_data import decode
from datakit.storage.manifest import (
    DATA_FOLDER,
    UNSEALED,
    InputReference,
    Manifest,
    Partition,
    computed_fingerprint,
    data_path,
    manifest_url,
    read_manifest,
    totals_of,
)
from datakit.validate.files import Damage

RECORDS = "records.jsonl"
PARTITIONED = ("normalize", "signatures", "dedup", "consolidate", "tokenize")  # stages with outputs below `data/`
TEXTS = ("normalize", "consolidate")  # stages whose order of sources is kept by later stages


class _Skipped(msgspec.Struct, frozen=True):
    """The fields of a `QuarantinedRecord` on which a step's identity depends. That class is not used here, because its
    module imports pyarrow.
    """

    file: str
    position: int
    records: int = 1


def manifest_damage(directory: str, manifest: Manifest) -> Iterator[Damage]:
    """Yield a Damage for each statement of a manifest that contradicts other statements, the inputs or the files."""
    url = manifest_url(directory)
    expected = computed_fingerprint(manifest)
    if expected not in (None, manifest.fingerprint):
        yield _wrong(url, "fingerprint", manifest.fingerprint, "its version, parameters and inputs", expected)
    yield from _identity_damage(directory, manifest)
    if manifest.stage in PARTITIONED:
        if manifest.totals != totals_of(manifest.partitions):
            yield _wrong(url, "total", manifest.totals, "its partitions", totals_of(manifest.partitions))
        yield from (Damage(url, difference) for difference in _partition_differences(manifest))
    inputs: list[Manifest] = []
    for reference in manifest.inputs:
        yield from _input_damage(directory, reference, inputs)
    if len(inputs) == len(manifest.inputs) and manifest.stage in PARTITIONED:
        yield from _order_damage(url, manifest, inputs)


def _wrong(url: str, what: str, said: object, basis: str, computed: object) -> Damage:
    return Damage(url, f"says that the {what} is {said}, but {basis} give {computed}")


def _identity_damage(directory: str, manifest: Manifest) -> Iterator[Damage]:
    url, records, quarantined = manifest_url(directory), 0, []
    if manifest.quarantine.records:
        listed = urls.join(directory, manifest.quarantine.path, RECORDS)
        try:
            entries = [decode(line, _Skipped) for line in urls.read_bytes(listed).splitlines()]
        except (NotFoundError, msgspec.DecodeError):
            yield Damage(listed, f"is missing or damaged; the manifest says {manifest.quarantine.records} records")
            return
        quarantined = [f"{entry.file}:{entry.position}" for entry in entries]
        records = sum(entry.records for entry in entries)
    if records != manifest.quarantine.records:
        yield _wrong(url, "number of quarantined records", manifest.quarantine.records, "the list's entries", records)
    expected = identity(manifest.fingerprint, quarantined)
    if expected != manifest.identity:
        yield _wrong(url, "identity", manifest.identity, "its fingerprint and quarantined records", expected)


def _partition_differences(manifest: Manifest) -> Iterator[str]:
    """Yield a message for each partition whose source differs from the one in its path, or that is out of order."""
    for partition in manifest.partitions:
        if partition.path.rpartition("/")[0] not in _folders(manifest, partition.source):
            yield f"says that {partition.path} belongs to source {partition.source!r}"
    groups = [(source, list(parts)) for source, parts in groupby(manifest.partitions, key=lambda part: part.source)]
    if len({source for source, _ in groups}) < len(groups):
        yield "lists partitions of other sources between those of one source"
    for _, parts in groups:
        for before, after in pairwise(parts):
            if _number(before) >= _number(after):
                yield f"lists {after.path} after {before.path}"
        known = [part for part in parts if part.first_id is not None and part.last_id is not None]
        for before, after in pairwise(known):
            if (before.last_id or "") >= (after.first_id or ""):
                yield f"says that {after.path} begins at or before the end of {before.path}"


def _folders(manifest: Manifest, source: str) -> tuple[str, ...]:
    """Return a source's possible folders: `data/<source>/` and, in format 1, also `<source>/` and the step's folder."""
    now = data_path(source, "").rstrip("/")
    return (now, source, "") if manifest.format == UNSEALED else (now,)


def _number(partition: Partition) -> tuple[int, str]:
    name = urls.name(partition.path)
    return len(name), name


def _input_damage(directory: str, reference: InputReference, found: list[Manifest]) -> Iterator[Damage]:
    """Yield the differences between an input's manifest and `reference`; append the manifest to `found` if readable."""
    url = urls.join(directory, reference.path)
    try:
        above = read_manifest(urls.parent(url))
    except NotFoundError:
        return
    except CorruptError as error:
        yield Damage(url, f"cannot be used: {error}")
        return
    found.append(above)
    for what, is_now, was in (
        ("identity", above.identity, reference.identity),
        ("checksum", above.checksum, reference.checksum or above.checksum),
    ):
        if is_now != was:
            yield Damage(url, f"has the {what} {is_now}; the step was made from {was}")


def _order_damage(url: str, manifest: Manifest, inputs: list[Manifest]) -> Iterator[Damage]:
    """Yield a Damage if the sources are not in the order of the inputs; sources without documents may be missing."""
    above = dict.fromkeys(part.source for one in inputs if one.stage in TEXTS for part in one.partitions)
    ours = dict.fromkeys(part.source for part in manifest.partitions)
    expected = [source for source in above if source in ours]
    if above and list(ours) != expected:
        yield _wrong(url, "order of the sources", ", ".join(ours), "its inputs", ", ".join(expected))


def undescribed_files(directory: str, described: set[str]) -> Iterator[Damage]:
    """Yield a Damage for each file below `data/` whose URL is not in `described`, the URLs of the manifest's files."""
    for info in urls.listing(urls.join(directory, DATA_FOLDER)):
        if info.url not in described and not urls.name(info.path).startswith(atomic.TEMPORARY_PREFIX):
            yield Damage(info.url, "is not in the manifest", "restore the manifest, or remove the file")
