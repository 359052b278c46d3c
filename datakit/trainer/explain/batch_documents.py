"""Groups the tokens of a batch by document: for each document, its place in its cache and its parts in the batch.

A document may have several parts: one that does not fit in a sequence is split over rows, and a component that repeats
may serve a document twice in one batch. Two components, or two caches, may hold equal texts; these count as two
documents, with the same id. Ids are looked up only on request, because they take a read of the cache's id column, which
needs pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datakit.cache.reader import Cache
from datakit.errors import UsageError
from datakit.loader import CacheSource, Loader
from datakit.loader.reading.places import DocumentPart


@dataclass(frozen=True)
class BatchDocument:
    """A document of a cache, and its parts in a batch. row: its row in the cache. excluded: by the mixture."""

    component: str
    cache: Cache
    row: int
    parts: tuple[DocumentPart, ...]
    excluded: bool

    @property
    def id(self) -> str:
        """The document's id. Reads a row group of the cache's id column."""
        return self.cache.document(self.row).id

    @property
    def source(self) -> str:
        """The name of the document's source."""
        return self.cache.source_of(self.row)

    @property
    def tokens(self) -> int:
        """Number of the document's tokens in the batch."""
        return sum(part.stop - part.start for part in self.parts)

    @property
    def rows(self) -> list[int]:
        """The rows of the batch that hold the document's parts."""
        return sorted({part.row for part in self.parts})

    def mask(self, rows: int, length: int) -> np.ndarray:
        """Return where the document's tokens are in a batch: bool [rows, length]."""
        mask = np.zeros((rows, length), bool)
        for part in self.parts:
            mask[part.row, part.start : part.stop] = True
        return mask


def batch_documents(loader: Loader, step: int) -> list[BatchDocument]:
    """Return the documents of global batch `step` (from 0), in the order of their first parts. Raises UsageError for a
    component that is not read from a cache, because its documents have no ids.
    """
    grouped: dict[tuple[str, int], list[DocumentPart]] = {}
    for part in loader.places(step):
        grouped.setdefault((part.component, part.document[0]), []).append(part)
    return [_document(loader, name, start, parts) for (name, start), parts in grouped.items()]


def _document(loader: Loader, component: str, start: int, parts: list[DocumentPart]) -> BatchDocument:
    source = loader.sources[component]
    if not isinstance(source, CacheSource):
        raise UsageError(f"component {component!r} is not read from a cache, so its documents have no ids")
    row = source.cache.row_at(source.start + start)
    return BatchDocument(component, source.cache, row, tuple(parts), parts[0].excluded)
