"""Cuts a source's files into slices of about equal work: what one routing task reads.

Plain JSON Lines are cut into byte ranges, Parquet files into ranges of row groups, 64 MiB each; a compressed stream
cannot be cut and goes as a whole. Small files are gathered, in path order, so that a hundred thousand of them do not
make a hundred thousand tasks. Slices depend on the listing (and Parquet footers) alone, and their order is the order of
the records: file by path, then position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from datakit.normalize import formats
from datakit.normalize.config import Config
from datakit.normalize.readers.base import Blocks, Reading
from datakit.normalize.readers.csv import read_csv
from datakit.normalize.readers.json import read_json
from datakit.normalize.readers.parquet_arrow import open_parquet, read_arrow, read_parquet
from datakit.normalize.readers.text import read_texts
from datakit.storage import urls

SLICE_BYTES = 64 << 20
TEXT_SLICE_BYTES = 16 << 20  # files that are documents cost more to read
EXPANSION = 4  # text bytes for a byte of a compressed file, roughly
FILE_OVERHEAD = 64 << 10  # opening a file costs about as much as reading so many bytes
FOOTER_THREADS = 16


@dataclass(frozen=True)
class Piece:
    """A part of a file: bytes [start, stop) of plain JSON Lines, row groups [start, stop) of Parquet, or all of it."""

    path: str
    format: str
    weight: int  # about how many bytes of records it holds
    start: int = 0
    stop: int | None = None

    def plain(self) -> dict[str, Any]:
        """As task arguments."""
        return asdict(self)


def cut_slices(base: str, files: Sequence[tuple[str, int]], config: Config) -> list[list[Piece]]:
    """The slices of a source from its (path, size) listing, in order. Raises UnreadableError for unknown formats."""
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        cut = pool.map(lambda file: list(_pieces(base, file[0], file[1], config)), sorted(files))
        return list(_gather(piece for pieces in cut for piece in pieces))


def _pieces(base: str, path: str, size: int, config: Config) -> Iterator[Piece]:
    kind = formats.format_of(path, config.format)
    packed = formats.compression_of(path) is not None
    weight = size * EXPANSION if packed or kind == formats.PARQUET else size
    if size <= SLICE_BYTES or packed:
        yield Piece(path, kind, weight + FILE_OVERHEAD)
    elif kind == formats.JSON:
        for start in range(0, size, SLICE_BYTES):
            stop = start + SLICE_BYTES
            yield Piece(path, kind, SLICE_BYTES, start, stop if stop < size else None)
    elif kind == formats.PARQUET:
        yield from _row_group_ranges(base, path, weight)
    else:
        yield Piece(path, kind, weight)


def _row_group_ranges(base: str, path: str, weight: int) -> Iterator[Piece]:
    with urls.open_read(urls.join(base, path)) as source:
        file = open_parquet(source, path)
        if file is None:
            yield Piece(path, formats.PARQUET, weight)
            return
        sizes = [file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups)]
    start = gathered = 0
    for group, size in enumerate(sizes):
        gathered += size
        if gathered >= SLICE_BYTES or group == len(sizes) - 1:
            yield Piece(path, formats.PARQUET, gathered, start, group + 1)
            start, gathered = group + 1, 0


def _gather(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    held: list[Piece] = []
    weight = 0
    for piece in pieces:
        if held and weight + piece.weight > (TEXT_SLICE_BYTES if piece.format == formats.TEXT else SLICE_BYTES):
            yield held
            held, weight = [], 0
        held.append(piece)
        weight += piece.weight
    if held:
        yield held


def read_slice(reading: Reading, pieces: Sequence[Piece]) -> Blocks:
    """The records of a slice, in order."""
    texts: list[str] = []
    for piece in pieces:
        if piece.format == formats.TEXT:
            texts.append(piece.path)
            continue
        yield from read_texts(reading, texts)
        texts = []
        yield from read_piece(reading, piece)
    yield from read_texts(reading, texts)


def read_piece(reading: Reading, piece: Piece) -> Blocks:
    """The records of a piece, in order."""
    if piece.format == formats.JSON:
        return read_json(reading, piece.path, piece.start, piece.stop)
    if piece.format == formats.PARQUET:
        return read_parquet(reading, piece.path, piece.start, piece.stop)
    if piece.format == formats.ARROW:
        return read_arrow(reading, piece.path)
    if piece.format == formats.TEXT:
        return read_texts(reading, [piece.path])
    return read_csv(reading, piece.path, "," if piece.format == formats.CSV else "\t")
