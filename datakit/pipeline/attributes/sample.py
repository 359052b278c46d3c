"""Draws a sample of the documents whose attribute has a given value.

The sample consists of the documents with the smallest hashes of id and seed, among those that match. It depends neither
on the order of the documents nor on how they are divided into partitions, and a larger sample contains a smaller one.
Memory: one row group of the column, and the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.pipeline.attributes.columns import LABEL, LIST, NUMBER, AttributeColumn, batches
from datakit.pipeline.attributes.tables import AttributeFile
from datakit.storage.ids import ADVICE, ids_from_arrow
from datakit.storage.parquet import find_rows
from datakit.text.hash_mixing import GOLDEN, mix

EXCERPT = 300  # characters


@dataclass(frozen=True)
class Wanted:
    """A request for a sample: the number of documents, and which of them match. between: the smallest and the largest
    number. label: the label that a document has. Without both, all documents with a value match.
    """

    count: int
    between: tuple[float, float] | None = None
    label: str | None = None
    seed: int = 0

    def check(self, column: AttributeColumn) -> None:
        """Raise UsageError if the column cannot have such values."""
        if self.count < 1:
            raise UsageError(f"--sample {self.count}: give a number of documents from 1")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"--seed {self.seed}: give a number from 0 to 2**64 - 1")
        if self.between is not None and column.kind not in (NUMBER, LIST):
            raise UsageError(f"--between: {column} holds no numbers; choose documents by a label, with --label")
        if self.between is not None and not self.between[0] <= self.between[1]:
            raise UsageError(f"--between {self.between[0]:g} {self.between[1]:g}: give the smaller number first")
        if self.label is not None and not column.has_labels:
            raise UsageError(f"--label: {column} holds no labels; choose documents by a number, with --between")


@dataclass(frozen=True)
class Sampled:
    """A document of the sample. value: a number, a label or, for a list, the number of its elements; None if the column
    has none of these. labels: how often a list has each label. excerpt: the start of the text, if it was asked for.
    """

    id: str
    source: str
    value: float | str | None
    labels: dict[str, int]
    texts: str
    excerpt: str | None = None


def sample(files: Sequence[AttributeFile], column: AttributeColumn, wanted: Wanted) -> tuple[list[Sampled], int]:
    """Return the sample, ordered by value and id, and the number of all documents that match. files: those of the
    column's annotator.
    """
    wanted.check(column)
    kept, matching = list[tuple[int, str, str, Sampled]](), 0
    for file, table in batches(files, [column]):
        rows = np.flatnonzero(_matching(column, table[column.name], wanted))
        matching += len(rows)
        if len(rows):
            rows, hashes = _smallest(table.take(rows)["id"], rows, wanted, file)
            drawn = _documents(column, table.take(rows), file)
            kept += [(code, one.id, one.source, one) for code, one in zip(hashes.tolist(), drawn, strict=True)]
            kept = sorted(kept, key=lambda one: one[:3])[: wanted.count]
    return sorted((one[-1] for one in kept), key=_order), matching


def with_excerpts(documents: Sequence[Sampled], characters: int = EXCERPT) -> list[Sampled]:
    """Add the first characters of each document's text, and an ellipsis if there are more. Raises NotFoundError if the
    normalized documents are gone, and CorruptError if a document is not among them.
    """
    texts = (_text(one) for one in documents)
    cut = (text if len(text) <= characters else f"{text[:characters]}…" for text in texts)
    return [replace(one, excerpt=excerpt) for one, excerpt in zip(documents, cut, strict=True)]


def _text(document: Sampled) -> str:
    try:
        found = find_rows(document.texts, document.id, ["text"])
    except NotFoundError as error:
        raise NotFoundError(
            f"{document.texts}, which holds the texts of sampled documents, is missing; leave out --text, or restore "
            "the normalize step beside the annotate step"
        ) from error
    if not found:
        raise CorruptError(f"{document.texts} has no document {document.id}; `datakit validate` the annotate step")
    return found[0][1]["text"] or ""


def _matching(column: AttributeColumn, values: pa.ChunkedArray, wanted: Wanted) -> np.ndarray:
    """Return which rows match, bool [N]."""
    mask = values.is_valid().to_numpy(zero_copy_only=False)
    if wanted.between is not None:
        low, high = map(column.rounded, wanted.between)
        numbers = column.numbers(values)
        mask = mask & (numbers >= low) & (numbers <= high)
    if wanted.label is not None:
        mask = mask & column.has_label(values, wanted.label)
    return mask


def _smallest(
    ids: pa.ChunkedArray, rows: np.ndarray, wanted: Wanted, file: AttributeFile
) -> tuple[np.ndarray, np.ndarray]:
    """Return those of the rows whose ids have the smallest hashes, and these hashes, in the order of the rows."""
    try:
        high, low = ids_from_arrow(ids)
    except ValueError as error:
        raise CorruptError(f"{file.url}: {error}; {ADVICE}") from error
    seed = np.full(1, wanted.seed, np.uint64)
    hashes = mix(mix(high ^ mix(seed * GOLDEN + GOLDEN)) ^ low)
    first = np.sort(np.argsort(hashes, kind="stable")[: wanted.count])
    return rows[first], hashes[first]


def _documents(column: AttributeColumn, table: pa.Table, file: AttributeFile) -> list[Sampled]:
    values = table[column.name]
    found = list[Sampled]()
    for number, identity in enumerate(table["id"].to_pylist()):
        one, labels = values.slice(number, 1), dict[str, int]()
        if column.kind == LIST and column.has_labels:
            for label in column.labels(one).to_pylist():
                labels[label] = labels.get(label, 0) + 1
        found.append(Sampled(identity, file.source, _value(column, one), labels, file.texts))
    return found


def _value(column: AttributeColumn, one: pa.ChunkedArray) -> float | str | None:
    if column.kind == LABEL:
        return column.labels(one)[0].as_py()
    if column.kind == LIST:
        return len(one[0])
    value = one[0].as_py() if column.kind == NUMBER else None
    return column.shown(value) if isinstance(value, float) else value


def _order(document: Sampled) -> tuple[bool, float, str, str, str]:
    value = document.value
    number = value if isinstance(value, int | float) else 0.0
    return value is None, number, value if isinstance(value, str) else "", document.id, document.source
