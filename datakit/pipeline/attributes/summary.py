"""Summarizes columns of attributes in one pass: rows, nulls, quantiles of the numbers, counts of the labels; and draws
up the histogram of one column in a second pass.

Memory: one row group of the columns, at most 16 MiB for the quantiles of a column (`quantiles.py`), and at most
DISTINCT labels or LABEL_BYTES bytes of them per column. If a column has more, its labels are not counted.
"""

# pyright: reportAttributeAccessIssue=false
# Arrow adds the functions of pyarrow.compute when it is imported.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datakit.errors import UsageError
from datakit.pipeline.attributes.columns import LIST, NUMBER, OTHER, AttributeColumn, batches
from datakit.pipeline.attributes.histogram import Extent, Histogram, chosen_scale, count_in, edges_of
from datakit.pipeline.attributes.quantiles import ERROR, Quantiles
from datakit.pipeline.attributes.tables import AttributeFile

SHARES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
DISTINCT, LABEL_BYTES = 1 << 16, 16 << 20


@dataclass(frozen=True)
class Numbers:
    """The distribution of a column's numbers. quantiles: by share, such as "0.5". error: the relative error that a
    quantile may have, 0 if all are exact.
    """

    count: int
    least: float
    most: float
    least_positive: float | None
    quantiles: dict[str, float]
    error: float

    @property
    def median(self) -> float:
        """The number in the middle."""
        return self.quantiles["0.5"]


@dataclass(frozen=True)
class Labels:
    """The labels of a column. counts: how often each occurs, the most frequent first; None if there are too many."""

    counts: tuple[tuple[str, int], ...] | None

    @property
    def total(self) -> int:
        """The number of all labels, with repetitions."""
        return sum(count for _, count in self.counts or ())


@dataclass(frozen=True)
class ColumnSummary:
    """The content of a column. rows: the rows of its tables. not_finite: how many numbers are NaN or infinite;
    `numbers` leaves them out, and is None if there are no others. labels: None if the column cannot have any.
    """

    column: str
    type: str
    kind: str
    rows: int
    nulls: int
    not_finite: int
    numbers: Numbers | None
    labels: Labels | None

    def require_countable(self) -> None:
        """Raise UsageError if there is nothing of which a histogram could be drawn."""
        if self.kind == OTHER:
            raise UsageError(f"{self.column} has the type {self.type}; only numbers, strings and lists can be counted")
        if self.labels is not None and self.labels.counts is None:
            raise UsageError(
                f"{self.column} has more than {DISTINCT:,} different labels, or {LABEL_BYTES >> 20} MiB of them, so a "
                "histogram would show hardly any; look at a sample instead, with --sample 20"
            )


@dataclass
class _Counter:
    """Summarizes a column, batch by batch."""

    column: AttributeColumn
    rows: int = 0
    nulls: int = 0
    not_finite: int = 0
    quantiles: Quantiles = field(default_factory=Quantiles)
    counts: dict[str, int] | None = field(default_factory=dict)
    held: int = 0  # bytes of labels

    def add(self, values: pa.ChunkedArray) -> None:
        self.rows += len(values)
        self.nulls += values.null_count
        if self.column.kind in (NUMBER, LIST):
            numbers = self.column.numbers(values)
            finite = numbers[np.isfinite(numbers)]
            self.not_finite += len(numbers) - values.null_count - len(finite)
            self.quantiles.add(finite)
        if self.column.has_labels and self.counts is not None:
            self._add_labels(self.column.labels(values))

    def _add_labels(self, labels: pa.ChunkedArray) -> None:
        counts = self.counts
        assert counts is not None
        found = pc.value_counts(labels)
        if len(found) <= DISTINCT and int(pc.sum(pc.binary_length(found.field(0))).as_py() or 0) <= LABEL_BYTES:
            for label, count in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
                self.held += 0 if label in counts else len(label.encode())
                counts[label] = counts.get(label, 0) + count
            if len(counts) <= DISTINCT and self.held <= LABEL_BYTES:
                return
        self.counts = None

    def summary(self) -> ColumnSummary:
        column = self.column
        counts = None if self.counts is None else tuple(sorted(self.counts.items(), key=lambda one: (-one[1], one[0])))
        labels = Labels(counts) if column.has_labels else None
        return ColumnSummary(
            str(column), str(column.type), column.kind, self.rows, self.nulls, self.not_finite, self._numbers(), labels
        )

    def _numbers(self) -> Numbers | None:
        found = self.quantiles
        if not found.count:
            return None
        shown = self.column.shown
        positive = shown(found.least_positive) if np.isfinite(found.least_positive) else None
        quantiles = {str(share): shown(found.at(share)) for share in SHARES}
        error = 0.0 if found.exact else ERROR
        return Numbers(found.count, shown(found.least), shown(found.most), positive, quantiles, error)


def summarize(files: Sequence[AttributeFile], columns: Sequence[AttributeColumn]) -> list[ColumnSummary]:
    """Summarize the columns of these files, reading one annotator's tables after another."""
    found = list[ColumnSummary]()
    for annotator in dict.fromkeys(one.annotator for one in columns):
        counters = [_Counter(one) for one in columns if one.annotator == annotator]
        tables = [file for file in files if file.annotator == annotator]
        for _, table in batches(tables, [one.column for one in counters]):
            for one in counters:
                one.add(table[one.column.name])
        found += [one.summary() for one in counters]
    return found


def histogram(
    files: Sequence[AttributeFile], column: AttributeColumn, numbers: Numbers, scale: str, most_bins: int
) -> Histogram:
    """Count the numbers of a column in at most `most_bins` bins. files: those of the column's annotator. numbers: the
    column's summary. scale: "linear", "log" or "auto".
    """
    positive = float("inf") if numbers.least_positive is None else numbers.least_positive
    extent = Extent(numbers.least, numbers.median, numbers.most, positive, column.whole)
    scale = chosen_scale(scale, extent)
    edges = edges_of(scale, extent, most_bins, column.rounded)
    counts = np.zeros(len(edges) - 1, np.int64)
    for _, table in batches(files, [column]):
        values = column.numbers(table[column.name])
        counts += count_in(edges, values[np.isfinite(values)])
    return Histogram(scale, tuple(map(column.shown, edges)), tuple(counts.tolist()))
