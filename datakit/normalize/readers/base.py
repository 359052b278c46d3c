"""What readers are given, and what they yield."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.engine.task import TaskContext, Tolerance
from datakit.normalize.config import Config
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.record_counts import Findings


@dataclass(frozen=True)
class Reading:
    """A task's view of a source: its files, how they are read, and where to say what is wrong with them.

    context: where records are taken in hand; by default nobody looks.
    """

    inputs: Inputs
    config: Config
    findings: Findings
    context: TaskContext = field(default_factory=lambda: TaskContext("", Path()))

    def for_nothing(self) -> Reading:
        """The same, but what is found goes nowhere: for trying one record."""
        return Reading(self.inputs, self.config, Findings(Tolerance(1 << 62)))


@dataclass(frozen=True)
class Block:
    """Some records of one file, in order.

    table: their columns as they are upstream. positions: int64 [rows], where each record is in the file: its
    uncompressed byte offset, or its row in a Parquet or Arrow file. bytes_read: how much was read for it. files: where
    each record is a file, which one.
    """

    file: str
    table: pa.Table
    positions: np.ndarray
    bytes_read: int
    files: tuple[str, ...] = ()

    @property
    def places(self) -> str | Sequence[str]:
        """The file of all records, or one for each."""
        return self.files or self.file

    def only(self, rows: np.ndarray) -> Block:
        """Some of the records, by a mask."""
        files = (
            tuple(file for file, stays in zip(self.files, rows.tolist(), strict=True) if stays) if self.files else ()
        )
        return replace(self, table=self.table.filter(pa.array(rows)), positions=self.positions[rows], files=files)

    def one(self, row: int) -> Block:
        """One of the records."""
        files = self.files[row : row + 1]
        return replace(self, table=self.table.slice(row, 1), positions=self.positions[row : row + 1], files=files)


Blocks = Iterator[Block]
