"""Reads MediaWiki's XML dumps (`*-pages-articles*.xml.bz2` and the like): each page becomes one record, with the
wikitext of its latest revision as the text.

The columns are `id` (the page's id), `text`, `title`, `namespace` (0: articles), `revision`, `timestamp` (of the
revision, as written), `redirect` (the title that the page redirects to) and `model` (the kind of content, such as
`wikitext`). A page that is not well-formed is quarantined with its offset, and reading goes on at the next page. So is
a page longer than `max_document_bytes` with all its revisions, which matters in dumps of full histories. The text of a
deleted revision is missing. Invalid UTF-8 is replaced, as in JSON Lines.

Memory: one chunk of about 4 MiB, or one page. Cost: about 20 microseconds a page and 3 ms per MB of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from datakit.normalize.readers.base import Chunk, Chunks, ReadContext, chunked, longest_record
from datakit.normalize.readers.json import valid_utf8
from datakit.normalize.readers.streams import DamagedError, decompressed
from datakit.normalize.readers.xml.page_fields import NotAPageError, Page, parse_page
from datakit.normalize.readers.xml.pages import PageCutter

Located = tuple[int, bytes]  # the offset of a page, and the page


def read_mediawiki(context: ReadContext, path: str) -> Chunks:
    """Yield the pages of a dump. Raises UnreadableError."""
    counts = context.counts
    cutter = PageCutter(path, longest_record(context.config), lambda *bad: counts.unreadable(path, *bad))
    reported: list[str] = []

    def located() -> Iterator[Located]:
        try:
            yield from cutter.pages(decompressed(file, path, streams=context.streams))
        except DamagedError as error:
            reported.append(f"{error}; what follows is lost")

    with context.inputs.open(path) as file:
        for batch in chunked(located(), lambda page: len(page[1])):
            yield from _chunk(context, path, batch)
        for reason in reported:
            counts.unreadable(path, cutter.position, reason)


def _chunk(context: ReadContext, path: str, batch: list[Located]) -> Chunks:
    positions, counts = np.array([offset for offset, _ in batch], np.int64), context.counts
    kept = context.start_batch(path, positions, lambda row: _try_page(batch[row][1]))
    pages, places = [], []
    for row, (offset, data) in enumerate(batch):
        if kept is not None and not kept[row]:
            continue
        try:
            page, repaired = _parsed(data)
        except NotAPageError as error:
            counts.unreadable(path, offset, str(error))
            continue
        counts.counters["normalize/invalid_utf8"] += repaired
        pages.append(page)
        places.append(offset)
    if pages:
        counts.add_read(len(pages))
        table = context.choice.read_columns(_table(pages))
        yield Chunk(path, table, np.array(places, np.int64), sum(len(page) for _, page in batch))


def _try_page(data: bytes) -> None:
    with suppress(NotAPageError):
        _parsed(data)


def _parsed(data: bytes) -> tuple[Page, int]:
    """Return a page, and 1 if it had invalid UTF-8, else 0. Raises NotAPageError."""
    valid, changed = valid_utf8(data)
    return parse_page(valid), min(1, changed)


def _table(pages: list[Page]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([page.id for page in pages], pa.string()),
            "text": pa.array([page.revision.text for page in pages], pa.large_string()),
            "title": pa.array([page.title for page in pages], pa.string()),
            "namespace": pa.array([page.namespace for page in pages], pa.int64()),
            "revision": pa.array([page.revision.id for page in pages], pa.int64()),
            "timestamp": pa.array([page.revision.timestamp for page in pages], pa.string()),
            "redirect": pa.array([page.redirect for page in pages], pa.string()),
            "model": pa.array([page.revision.model for page in pages], pa.string()),
        }
    )
