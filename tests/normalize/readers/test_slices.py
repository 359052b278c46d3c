"""Cutting a source into slices."""

from __future__ import annotations

from pathlib import Path

from datakit.normalize.config import Config
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, cut_slices


def test_small_files_are_grouped_and_large_ones_cut(tmp_path: Path) -> None:
    mebibyte = 1 << 20
    files = [
        ("a.jsonl.gz", 500 * mebibyte),
        ("b.jsonl", 150 * mebibyte),
        *((f"c/{n:04d}.txt", 100) for n in range(1000)),
    ]
    slices = cut_slices(Inputs(str(tmp_path)), files, Config())
    assert slices[0] == [FileRange("a.jsonl.gz", "json", 2000 * mebibyte + (64 << 10))]
    assert [(piece.start, piece.stop) for pieces in slices[1:4] for piece in pieces] == [
        (0, 64 * mebibyte), (64 * mebibyte, 128 * mebibyte), (128 * mebibyte, None),
    ]  # fmt: skip
    assert [len(pieces) for pieces in slices[4:]] == [255, 255, 255, 235]
    assert [piece.path for pieces in slices[4:] for piece in pieces] == [path for path, _ in files[2:]]
