"""Lists what each shard of a token cache holds: a normalized partition, or the part of it that is in a document bucket.

The lists of a select step may be damaged, so this module compares nothing and raises no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datakit.storage import urls
from datakit.storage.manifest import Manifest, Partition
from datakit.storage.selection.buckets import REST, bucket_path, buckets_of


@dataclass(frozen=True)
class EncodedPart:
    """The documents of a normalized partition that one shard holds. bucket: None if its source is not divided. lists:
    the paths, in the select step, of the lists that name the documents of the bucket or, for REST, all others. rows:
    the number of documents that stay.
    """

    partition: Partition
    bucket: str | None
    lists: tuple[str, ...]
    rows: int


def encoded_parts(partitions: Sequence[Partition], select: Manifest | None) -> Iterator[EncodedPart]:
    """Yield the parts with documents, in the order of the cache. partitions: those of the normalize steps, in order."""
    leaving = {} if select is None else {part.path: part.rows for part in select.partitions}
    for source in dict.fromkeys(part.source for part in partitions):
        mine = [part for part in partitions if part.source == source]
        for bucket in (buckets_of(select, source) if select is not None else []) or [None]:
            for part in mine:
                found = _part(part, bucket, part.rows - leaving.get(part.path, 0), select)
                if found.rows > 0:
                    yield found


def _part(part: Partition, bucket: str | None, staying: int, select: Manifest | None) -> EncodedPart:
    if bucket is None or select is None:
        return EncodedPart(part, None, (), staying)
    name = urls.name(part.path)
    names = buckets_of(select, part.source)[:-1] if bucket == REST else [bucket]
    paths = tuple(bucket_path(part.source, one, name) for one in names)
    rows = sum(listed.rows for path in paths if (listed := select.files_by_path.get(path)) is not None)
    return EncodedPart(part, bucket, paths, staying - rows if bucket == REST else rows)
