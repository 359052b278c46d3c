"""Lists the columns of the records of web archives:

id          WARC-Record-ID without brackets; null in ARC files. The source's `id` can name another column: "url"
text        the page's text (extractors.py); null if the extractor finds none
url         the target's URL
date        when it was archived, as ISO 8601 in UTC: "2017-03-06T04:02:06Z"
media_type  "text/html", "application/xhtml+xml" or "text/plain"
language    the languages that the archive's maker recognized, or those that the server states
status      the HTTP status; null if the record holds no HTTP response
charset     the charset in which the page was decoded
offset      where the record is in the stored file, as in a CDX index: in a compressed file, the offset of the
            member that holds the record's first byte
truncated   why the crawler stored only a part of the page (WARC-Truncated); null if it stored all of it
"""

from __future__ import annotations

import importlib.util

import pyarrow as pa

from datakit.errors import UsageError
from datakit.normalize.config import TRAFILATURA, Config

COLUMNS = pa.schema(
    [
        ("url", pa.string()), ("date", pa.string()), ("media_type", pa.string()), ("language", pa.string()),
        ("status", pa.int64()), ("charset", pa.string()), ("offset", pa.int64()), ("truncated", pa.string()),
    ]
)  # fmt: skip
LIBRARIES = ("deflate", "fastwarc", "resiliparse")


def known_columns(config: Config) -> pa.Schema:
    """Return the columns that a source of web archives has before a transform, except its text."""
    fields = [field for field in COLUMNS if field.name not in (config.text, *config.drop)]
    own = [] if config.id in COLUMNS.names or config.id in config.drop else [pa.field(config.id or "id", pa.string())]
    return pa.schema([*own, *fields])


def require_libraries(extract: str) -> None:
    """Raise UsageError if a library is missing that the reader needs."""
    needed = (*LIBRARIES, TRAFILATURA) if extract == TRAFILATURA else LIBRARIES
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"web archives need {' and '.join(missing)}; run pip install '.[web]' in datakit's checkout, or exclude "
            "these files"
        )
