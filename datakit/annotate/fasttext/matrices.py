"""Reads the matrices of a fastText model, and decompresses quantized ones.

A quantized matrix stores a code per group of columns of each row; the code selects one of 256 centroids (Joulin et al.
2016, "FastText.zip"; formats of `DenseMatrix`, `QuantMatrix` and `ProductQuantizer` in fastText 0.9.2). Decompressed
rows need 4 bytes per number instead of about 1/2, but adding a row to a vector is then a single vectorized loop, and
each number is exactly the float32 that fastText computes for it (centroid times norm). The rows of lid.176.ftz take
3 MB.
"""

from __future__ import annotations

import numpy as np

from datakit.annotate.fasttext.file_cursor import FileCursor

CENTROIDS = 256  # per group of columns: a code is a byte
WIDEST = 64  # columns per group, at most (fastText's default is 2); bounds the memory for a file of a given size
LARGEST = 1e15  # products of two vectors stay far below the largest float32


def read_matrix(cursor: FileCursor, quantized: bool, rows: int, columns: int, meaning: str) -> np.ndarray:
    """Read a matrix, float32 [rows, columns]. Raises UnreadableError if the file states another shape, or if a number
    is not finite or is too large to compute with.
    """
    matrix = _read(cursor, quantized, rows, columns, meaning)
    fits = not matrix.size or bool(matrix.min() >= -LARGEST and matrix.max() <= LARGEST)  # False with NaN
    cursor.require(fits, f"{meaning} contain numbers that are too large, or none")
    return matrix


def _read(cursor: FileCursor, quantized: bool, rows: int, columns: int, meaning: str) -> np.ndarray:
    norms = cursor.flag(f"whether {meaning} have norms") if quantized else False
    shape = cursor.integers("qq")
    cursor.require(shape == (rows, columns), f"{meaning} have shape {shape} instead of {(rows, columns)}")
    if not quantized:
        return cursor.array("<f4", rows * columns, meaning).reshape(rows, columns)
    (code_bytes,) = cursor.integers("i")
    codes = cursor.array("u1", code_bytes, meaning)
    groups = _read_centroids(cursor, columns, meaning)
    cursor.require(code_bytes == rows * len(groups), f"the codes of {meaning} have another size than expected")
    matrix = _decompressed(codes.reshape(rows, len(groups)), groups)
    if norms:
        norm_codes = cursor.array("u1", rows, meaning)
        (norm_centroids,) = _read_centroids(cursor, 1, meaning)
        matrix *= norm_centroids[norm_codes]
    return matrix


def _read_centroids(cursor: FileCursor, columns: int, meaning: str) -> list[np.ndarray]:
    """Read a product quantizer; return the centroids of each group of columns, float32 [CENTROIDS, width]."""
    dimension, groups, width, last_width = cursor.integers("4i")
    expected = (columns, -(-columns // max(width, 1)), (columns - 1) % max(width, 1) + 1)
    valid = 1 <= width <= WIDEST and (dimension, groups, last_width) == expected
    cursor.require(valid, f"the quantizer of {meaning} has invalid sizes")
    numbers = cursor.array("<f4", columns * CENTROIDS, meaning)
    split = np.split(numbers, np.arange(1, groups) * CENTROIDS * width)
    return [part.reshape(CENTROIDS, -1) for part in split]


def _decompressed(codes: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """Return the rows for codes, uint8 [rows, groups]."""
    matrix = np.empty((len(codes), sum(group.shape[1] for group in groups)), np.float32)
    start = 0
    for index, group in enumerate(groups):
        matrix[:, start : start + group.shape[1]] = group[codes[:, index]]
        start += group.shape[1]
    return matrix
