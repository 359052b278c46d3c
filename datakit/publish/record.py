"""Defines `publication.json`, which describes a publication: its files with sizes and SHA-256, and the step that they
were made from. It is written last. It holds no time, host or path of the publisher, so the same step always gives the
same record, and an interrupted publication can go on.

The *revision* of a publication in a folder or a bucket is the beginning of the SHA-256 of this file. On the Hub, it is
the id of the commit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from datakit.errors import CorruptError
from datakit.storage import urls
from datakit.storage.json_data import decode
from datakit.storage.manifest import refuse_newer

FILE_NAME = "publication.json"
FORMAT = "datakit.publication/1"
REVISION_DIGITS = 16


class PublishedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of a publication: its path, its size, its SHA-256 and, if it holds documents, their number."""

    path: str
    bytes: int
    sha256: str
    rows: int | None = None


class Publication(msgspec.Struct, frozen=True):
    """The content of `publication.json`. identity, fingerprint, manifest: those of the step, and its manifest's
    checksum. rows: the number of documents. files: all files except this one.
    """

    dataset: str
    stage: str
    identity: str
    fingerprint: str
    manifest: str
    rows: int
    files: list[PublishedFile]
    format: str = FORMAT

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1) + b"\n"


@dataclass(frozen=True)
class Held:
    """The content of a destination. revision: "" if it is empty. record: None if the content is not from datakit."""

    revision: str
    record: Publication | None = None


def revision_of(data: bytes) -> str:
    """Return the revision of the publication that these bytes describe."""
    return hashlib.sha256(data).hexdigest()[:REVISION_DIGITS]


def decode_record(data: bytes, url: str) -> Publication:
    """Decode `publication.json`. Raises NewerFormatError, and CorruptError if the file cannot be parsed or names a file
    outside of the publication.
    """
    refuse_newer(data, url, FORMAT)
    try:
        record = decode(data, Publication)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} does not describe a publication: {error}; publish to another place") from error
    outside = next((file.path for file in record.files if not urls.is_below(file.path)), None)
    if outside is not None:
        raise CorruptError(f"{url} names the file {outside!r}, which is outside of the publication; do not use it")
    return record
