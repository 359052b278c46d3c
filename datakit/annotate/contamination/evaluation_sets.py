"""Defines evaluation sets, lists and hashes their files, and reads their items.

An *item* is one row of a file: a JSON line or a row of a table. Its *passages* are the texts in the configured columns,
each on its own, because n-grams across the end of a column would depend on the order of the columns. Items are numbered
from 0 in each set, in the order of the files' paths and of the rows.

Files are local. They are identified by the hashes of their contents, which are compared again when the files are read.
All files of a set are read into memory one after another; this happens once, when the index is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from datakit.annotate.contamination.item_files import known_columns, read_columns
from datakit.annotate.input_files import check_files, find_files
from datakit.errors import ChangedInputError, ColumnError, suggestion
from datakit.storage.atomic import hash_file


@dataclass(frozen=True)
class EvaluationSet:
    """One evaluation set: its name, its files (a path or a pattern), the columns that hold the texts of an item, and
    the hash that its files must have (see `annotate/input_files.py`), or "".
    """

    name: str
    path: str
    columns: tuple[str, ...] = ("question",)
    sha256: str = ""


@dataclass(frozen=True)
class ItemFile:
    """A file of an evaluation set: its path, its size in bytes and its xxh3-128."""

    path: str
    bytes: int
    xxh3: str


@dataclass(frozen=True)
class Passages:
    """The passages of all items of some sets.

    texts: large_string [P], without nulls. items: int64 [P], the number of the item of each passage, counted through
    all sets, ascending. set_starts: the first item of each set, followed by the number of all items.
    """

    texts: pa.Array
    items: pa.Array
    set_starts: tuple[int, ...]


def list_files(chosen: EvaluationSet) -> list[ItemFile]:
    """List and hash the files of a set, sorted by path. Raises NoInputError, UnreadableError and ChangedInputError."""
    paths = check_files(chosen.path, chosen.sha256, f"evaluation set {chosen.name!r}")
    return [_hashed(path) for path in paths]


def _hashed(path: str) -> ItemFile:
    xxh3, size = hash_file(Path(path))
    return ItemFile(path, size, xxh3)


def read_passages(sets: Sequence[EvaluationSet], files: Sequence[Sequence[ItemFile]]) -> Passages:
    """Read all passages. files: what `list_files` returned for each set. Raises ChangedInputError, UnreadableError and
    ColumnError; the latter also if a column has no text in a whole set.
    """
    texts: list[pa.Array] = []
    items: list[pa.Array] = []
    starts = [0]
    for chosen, listed in zip(sets, files, strict=True):
        first, seen = starts[-1], dict.fromkeys(chosen.columns, 0)
        known: set[str] = set()
        for file in listed:
            read = read_columns(Path(file.path), chosen.columns)
            if hash_file(Path(file.path)) != (file.xxh3, file.bytes):
                raise ChangedInputError(f"{file.path} changed while it was read; run again")
            known |= read.known
            for column, rows, column_texts in read.columns:
                seen[column] += len(column_texts)
                texts.append(column_texts)
                items.append(pa.array(rows.to_numpy() + first, pa.int64()))
            first += read.rows
        _check_columns(chosen, seen, known)
        starts.append(first)
    return _in_order(texts, items, tuple(starts))


def require_columns(chosen: EvaluationSet) -> None:
    """Raise ColumnError if a set has no such column in any file, and UnreadableError or NoInputError for an unusable
    file. No file is read further than needed.
    """
    known = set[str]()
    for path in find_files(chosen.path, f"evaluation set {chosen.name!r}"):
        known |= known_columns(Path(path), chosen.columns)
        if known.issuperset(chosen.columns):
            return
    _require_known(chosen, known)


def _require_known(chosen: EvaluationSet, known: set[str]) -> None:
    for column in chosen.columns:
        if column not in known:
            raise ColumnError(
                f"evaluation set {chosen.name!r} has no column {column!r}; {suggestion(column, sorted(known)[:50])}"
            )


def _check_columns(chosen: EvaluationSet, seen: dict[str, int], known: set[str]) -> None:
    _require_known(chosen, known | {column for column, count in seen.items() if count})
    for column, count in seen.items():
        if not count:
            raise ColumnError(f"evaluation set {chosen.name!r}: column {column!r} holds no text; leave it out")


def _in_order(texts: list[pa.Array], items: list[pa.Array], starts: tuple[int, ...]) -> Passages:
    table = pa.table({"text": pa.chunked_array(texts, pa.large_string()), "item": pa.chunked_array(items, pa.int64())})
    order = np.argsort(table["item"].to_numpy(), kind="stable")  # keeps the order of the columns
    table = table.take(pa.array(order)).combine_chunks()
    return Passages(_one_array(table["text"]), _one_array(table["item"]), starts)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
