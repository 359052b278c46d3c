"""Reads columns of texts from the formats in which evaluation sets are published: JSON lines (plain, gzip or zstd),
Parquet and Arrow (IPC file or stream). A value may be a text, a list of texts or null; anything else is refused.

A column with a dot, such as `choices.text`, is a field of structs or of lists of structs, unless a column has this very
name.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from datakit.errors import ColumnError, UnreadableError
from datakit.regular_files import open_regular

FORMATS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow")
ARROW_FILE = b"ARROW1\0\0"
CHUNK_BYTES = 256 << 10  # of compressed data
_LIBRARY_ERRORS = (OSError, EOFError, zstandard.ZstdError, pa.ArrowException, ValueError)


@dataclass(frozen=True)
class FileTexts:
    """The texts of one file.

    rows: the number of rows. known: the names of all columns. columns: for each configured column that the file has,
    its name, the row of each text (int64, ascending) and the texts (large_string, without nulls).
    """

    rows: int
    known: set[str]
    columns: list[tuple[str, pa.Array, pa.Array]]


def read_columns(path: Path, columns: Sequence[str]) -> FileTexts:
    """Read the columns of a file. Raises UnreadableError, and ColumnError if a value is neither text nor list."""
    suffix = _suffix(path)
    with _readable(path), open_regular(str(path)) as file:
        if suffix.startswith(".jsonl"):
            return _json_lines(path, _decompressed(file, suffix), columns)
        return _table_columns(path, _parquet_table(file) if suffix == ".parquet" else _arrow_table(file), columns)


def known_columns(path: Path, columns: Sequence[str]) -> set[str]:
    """Return the names of the columns of a file, and those of `columns` that it has. Only the schema is read; of JSON
    lines, the records until all of `columns` have been seen, which is usually the first one. Raises UnreadableError.
    """
    suffix, known = _suffix(path), set[str]()
    with _readable(path), open_regular(str(path)) as file:
        if not suffix.startswith(".jsonl"):
            schema = _parquet_schema(file) if suffix == ".parquet" else _arrow_schema(file)
            return {*schema.names, *(name for name in columns if _path_to(schema, name))}
        for _, record in _records(path, _decompressed(file, suffix)):
            known.update(record, _present(record, columns))
            if known.issuperset(columns):
                break
    return known


def _suffix(path: Path) -> str:
    suffix = next((suffix for suffix in FORMATS if path.name.endswith(suffix)), None)
    if suffix is None:
        raise UnreadableError(f"{path}: unknown format; rename or convert the file to one of {', '.join(FORMATS)}")
    return suffix


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of libraries, whose messages may quote texts, into UnreadableError."""
    try:
        yield
    except _LIBRARY_ERRORS as error:
        raise UnreadableError(
            f"{path} cannot be read ({type(error).__name__}); check that it is complete and has the format of its name"
        ) from None


def _decompressed(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    if suffix.endswith(".gz"):
        return iter(gzip.open(file))
    if suffix.endswith(".zst"):
        return _lines(_zstd_chunks(file))
    return iter(file)


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Decompress all frames of a file. Raises EOFError for a truncated frame, unlike `zstandard.open`."""
    frame, open_frame = zstandard.ZstdDecompressor().decompressobj(), False
    while data := file.read(CHUNK_BYTES):
        while data:
            yield frame.decompress(data)
            data, open_frame = frame.unused_data, not frame.eof
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if open_frame:
        raise EOFError


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []  # those of a line that has not ended
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for part in others:
            yield b"".join(parts)
            parts = [part]
    yield b"".join(parts)


def _json_lines(path: Path, lines: Iterator[bytes], columns: Sequence[str]) -> FileTexts:
    texts: dict[str, list[str]] = {column: [] for column in columns}
    rows: dict[str, list[int]] = {column: [] for column in columns}
    known: set[str] = set()
    count = 0
    for number, record in _records(path, lines):
        known.update(record, _present(record, columns))
        for column in columns:
            found = _texts_of(_value_in(record, column), path, column, number)
            texts[column] += found
            rows[column] += [count] * len(found)
        count += 1
    read = [(name, pa.array(rows[name], pa.int64()), pa.array(texts[name], pa.large_string())) for name in columns]
    return FileTexts(count, known, read)


def _records(path: Path, lines: Iterator[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each JSON object with the number of its line, from 1."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise UnreadableError(f"{path}, line {number}: not a JSON object; correct or remove the line") from None
        yield number, record


def _present(record: dict[str, Any], columns: Sequence[str]) -> Iterator[str]:
    """Return the columns that hold a value; a field that no object of a list has is an empty list."""
    return (column for column in columns if _value_in(record, column) not in (None, []))


def _value_in(value: Any, column: str) -> Any:
    """Return the value of a column or of a field; a list of all values for a field of a list of objects."""
    if isinstance(value, list):
        parts = [part for one in value if (part := _value_in(one, column)) is not None]
        return [text for part in parts for text in (part if isinstance(part, list) else [part])]
    if not isinstance(value, dict) or column in value:
        return value.get(column) if isinstance(value, dict) else None
    first, dot, rest = column.partition(".")
    return _value_in(value.get(first), rest) if dot else None


def _texts_of(value: Any, path: Path, column: str, line: int) -> list[str]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if all(isinstance(one, str) for one in values):
        return values
    raise ColumnError(f"{path}, line {line}: column {column!r} holds neither a text nor a list of texts; leave it out")


def _parquet_table(file: BinaryIO) -> pa.Table:
    return pq.ParquetFile(file, pre_buffer=False).read(use_threads=False)  # a fork server must not start threads


def _arrow_table(file: BinaryIO) -> pa.Table:
    data, options = pa.py_buffer(file.read()), pa.ipc.IpcReadOptions(use_threads=False)
    open_arrow = pa.ipc.open_file if data[:6].to_pybytes() == b"ARROW1" else pa.ipc.open_stream
    return open_arrow(data, options=options).read_all()


def _parquet_schema(file: BinaryIO) -> pa.Schema:
    return pq.ParquetFile(file, pre_buffer=False).schema_arrow


def _arrow_schema(file: BinaryIO) -> pa.Schema:
    if file.read(len(ARROW_FILE)) != ARROW_FILE:  # an Arrow file begins with these bytes, followed by a stream
        file.seek(0)
    return pa.ipc.open_stream(file).schema


def _table_columns(path: Path, table: pa.Table, columns: Sequence[str]) -> FileTexts:
    found = {name: path_to for name in columns if (path_to := _path_to(table.schema, name))}
    read = [(name, *_column_texts(path, name, table[first], fields)) for name, (first, *fields) in found.items()]
    return FileTexts(table.num_rows, {*table.column_names, *found}, read)


def _path_to(schema: pa.Schema, name: str) -> list[str]:
    """Return the name of a column followed by those of the fields that lead to `name`; [] if there is no such field."""
    if name in schema.names:
        return [name]
    first, *fields = name.split(".")
    if first not in schema.names:
        return []
    kind: Any = schema.field(first).type
    for field in fields:
        kind = kind.value_type if _is_list(kind) else kind
        if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
            return []
        kind = kind.field(field).type
    return [first, *fields]


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _column_texts(path: Path, name: str, column: pa.ChunkedArray, fields: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Return the row and the text of each text in a column, or in the fields that lead from it."""
    rows, column = _flat(np.arange(len(column)), column)
    for field in fields:
        structs = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        rows, column = _flat(
            rows, pa.chunked_array([pc.call_function("struct_field", [structs], pc.StructFieldOptions([field]))])
        )
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_null(column.type)):
        raise ColumnError(f"{path}: column {name!r} holds neither texts nor lists of texts; leave it out")
    present = column.is_valid().to_numpy()
    texts = column.drop_null().cast(pa.large_string()).combine_chunks()
    texts = texts if isinstance(texts, pa.Array) else texts.chunk(0) if texts.num_chunks else pa.array([], texts.type)
    return pa.array(rows[present], pa.int64()), texts


def _flat(rows: np.ndarray, column: pa.ChunkedArray) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Return the elements of a column of lists, with their rows; other columns unchanged."""
    if _is_list(column.type):
        lists = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        lengths = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        rows, column = np.repeat(rows, lengths), pa.chunked_array([lists.flatten()])
    return rows, column
