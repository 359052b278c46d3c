"""Makes libraries crash on certain documents, as a defect in them would, through a preload.

`poisoned(plan)` is a stage's plan whose tasks run with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datakit.engine.task import Phase, Plan, Preload, TaskResult

PARSE, HASH, WRITE = "PILL-PARSE", "PILL-HASH", "PILL-WRITE"  # each kills one kind of work
SIGN, ENCODE = "PILL-SIGN", "PILL-ENCODE"
LOOP = "PILL-LOOP"


def poisoned(plan: Plan, hang_seconds: float = 1.0, fault: str = "install") -> Plan:
    """Add the crashes to every child of a plan; `fault` names the function of this module that installs them."""
    results: Sequence[TaskResult] | None = None
    try:
        while True:
            phase: Phase = next(plan) if results is None else plan.send(results)
            preloads = (
                *phase.preloads,
                Preload("tests.support.faults.poisoned", f"tests.support.faults.poisoned:{fault}"),
            )
            results = yield replace(phase, preloads=preloads, hang_seconds=hang_seconds)
    except StopIteration as stop:
        return stop.value


def install() -> None:
    """Install the crashes in this process and its forks."""
    import datakit.dedup.minhash.signatures
    from datakit.normalize import route
    from datakit.normalize.readers import csv
    from datakit.normalize.readers.json_columns import ColumnParser
    from datakit.tokenize.encoders.base import FastEncoder
    from datakit.tokenize.encoders.bpe.encoder import BpeEncoder

    _guard(ColumnParser, "parse", PARSE, lambda parser, block, *others: block)
    _guard(csv, "_table", PARSE, lambda data, *others: data)
    _guard(route, "hash_texts", HASH, _bytes)
    _guard(datakit.dedup.minhash.signatures, "sign", SIGN, lambda texts, **rules: _bytes(texts))
    _guard(
        BpeEncoder,
        "encode_bytes",
        ENCODE,
        lambda encoder, data, offsets, left: data[offsets[0] : offsets[-1]].tobytes(),
    )
    _guard(FastEncoder, "encode_batch", ENCODE, lambda encoder, texts: "\n".join(texts).encode())
    _guard(pq.ParquetWriter, "write_table", WRITE, _texts_of)


def break_row_group() -> None:
    """Make row group 3 of any Parquet file kill its reader."""
    read, iterate = pq.ParquetFile.read_row_group, pq.ParquetFile.iter_batches

    def reading(self: Any, i: int, *arguments: Any, **others: Any) -> Any:
        if i == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(self, i, *arguments, **others)

    def iterating(self: Any, *arguments: Any, row_groups: Any = None, **others: Any) -> Any:
        if row_groups == [3]:
            os.kill(os.getpid(), signal.SIGSEGV)
        yield from iterate(self, *arguments, row_groups=row_groups, **others)

    pq.ParquetFile.read_row_group = reading
    pq.ParquetFile.iter_batches = iterating


def _bytes(texts: Any) -> bytes:
    column = texts if isinstance(texts, pa.Array) else texts.combine_chunks()
    return "\n".join(column.to_pylist()).encode()


def _texts_of(writer: Any, table: pa.Table, *others: Any, **more: Any) -> bytes:
    return _bytes(table["text"]) if "text" in table.column_names else b""


def _guard(owner: Any, name: str, pill: str, data_of: Callable[..., bytes]) -> None:
    real = getattr(owner, name)

    def guarded(*arguments: Any, **others: Any) -> Any:
        data = data_of(*arguments, **others)
        if LOOP.encode() in data:
            while True:
                pass
        if pill.encode() in data:
            os.kill(os.getpid(), signal.SIGSEGV)
        return real(*arguments, **others)

    setattr(owner, name, guarded)
