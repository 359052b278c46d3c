"""Exports a token cache as a Lance dataset with the columns `id`, `source` and `tokens` and, if the cache has them,
`loss_mask` and `bucket`: one row per document, even an empty one.

The dataset exists only once its version is committed, which Lance does last, so an interrupted export leaves files that
no reader sees; Lance refuses to write into a directory that holds a dataset. Lance gives its files random names and
writes the time into its version, so two exports hold the same rows in the same order, but not the same bytes. Memory:
one block of documents, and what Lance buffers, which grows slowly with the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from datakit.cache.reader import Cache
from datakit.errors import RootError, UsageError
from datakit.interop.export import Choice, ContentDigest, Exported, Progress, choose, require_equal, silent
from datakit.storage import urls

INSTALL = "Lance datasets need the package pylance; run pip install '.[lance]' in datakit's checkout"
ROWS_AT_ONCE = 1024
# How the dataset is read again. With Lance's defaults, which read ahead by up to 2 GiB, memory grew with the dataset.
READING = {"io_buffer_size": 32 << 20, "batch_readahead": 2, "fragment_readahead": 1}


def export_lance(cache: Cache, directory: str, source: str | None = None, *, progress: Progress = silent) -> Exported:
    """Write a cache, or one of its sources or document buckets, as a Lance dataset. Raises RootError if Lance is not
    installed, UsageError if the directory holds something already, and CorruptError.
    """
    try:
        import lance  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise RootError(INSTALL) from error
    choice, sent = choose(cache, source), ContentDigest()
    if urls.listing(directory):
        raise UsageError(f"{directory} is not empty; export to another directory, or remove it")
    reader = choice.cache.to_arrow(*choice.rows)
    batches = pa.RecordBatchReader.from_batches(reader.schema, _counted(reader, choice, sent, progress))
    lance.write_dataset(batches, directory, mode="create")
    require_equal(directory, sent, _written(lance.dataset(directory)), choice, 0)
    return Exported((directory,), sent.documents, sent.tokens, 0)


def _counted(
    reader: pa.RecordBatchReader, choice: Choice, sent: ContentDigest, progress: Progress
) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        _add(batch, sent)
        progress(sent.tokens, choice.tokens, "tokens")
        yield batch


def _written(dataset: Any) -> ContentDigest:
    """Read the dataset again with Lance."""
    found = ContentDigest()
    for batch in dataset.to_batches(columns=["id", "tokens"], batch_size=ROWS_AT_ONCE, **READING):
        _add(batch, found)
    return found


def _add(batch: pa.RecordBatch, digest: ContentDigest) -> None:
    lengths = np.asarray(batch["tokens"].value_lengths(), np.int64)
    digest.add(np.asarray(batch["tokens"].flatten()), lengths, "".join(batch["id"].to_pylist()).encode())
