"""Cutting a source into slices."""

from __future__ import annotations

from pathlib import Path

from datakit.normalize.config import Config
from datakit.normalize.readers.inputs import Inputs
from datakit.normalize.readers.slices import FileRange, are_large, cut_slices


def test_a_large_source_has_larger_slices_instead_of_more(tmp_path: Path) -> None:
    """The cuts are the same, and so is the order."""
    files = [(f"{number:06d}.jsonl", 100 << 20) for number in range(60_000)]  # counts as 7.3 TiB
    slices = cut_slices(Inputs(str(tmp_path)), files, Config())
    assert 8_192 < len(slices) <= 16_384
    assert are_large(slices)
    assert all(sum(part.weight for part in ranges) <= 8 * (64 << 20) for ranges in slices)
    parts = [(part.path, part.start) for ranges in slices for part in ranges]
    assert parts == [(path, start) for path, _ in files for start in (0, 64 << 20)]
    fewer = cut_slices(Inputs(str(tmp_path)), files[:1000], Config())
    assert not are_large(fewer)
    assert [part for ranges in fewer for part in ranges] == [part for ranges in slices for part in ranges][:2000]


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
