"""What readers are given, and what they yield."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from datakit.normalize.config import Config
from datakit.normalize.findings import Findings


@dataclass(frozen=True)
class Reading:
    """A task's view of a source: where its files lie, how they are read, and where to say what is wrong with them."""

    base: str
    config: Config
    findings: Findings


@dataclass(frozen=True)
class Block:
    """Some records of one file, in order.

    table: their columns as they are upstream. positions: int64 [rows], where each record is in the file: its
    uncompressed byte offset, or its row in a Parquet or Arrow file. bytes_read: how much was read for it.
    """

    file: str
    table: pa.Table
    positions: np.ndarray
    bytes_read: int


Blocks = Iterator[Block]
