"""Tests of exports as Lance datasets, read back with Lance and DuckDB. They need pylance."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.errors import CorruptError, RootError, UsageError
from datakit.interop import lance_export
from datakit.interop.lance_export import export_lance
from tests.support.caches import make_cache, random_cache
from tests.support.partitions import words


def test_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 9)})))
    with pytest.raises(RootError, match=r"pip install '\.\[lance\]'"):
        export_lance(cache, str(tmp_path / "out"))


@pytest.mark.parametrize("masks", [False, True])
def test_lance_reads_every_document(tmp_path: Path, masks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lance = pytest.importorskip("lance", reason="pylance is not installed: pip install pylance")
    monkeypatch.setattr(lance_export, "ROWS_AT_ONCE", 7)
    directory, _ = random_cache(tmp_path, np.uint16, [70_000, 1, 0, 131_072], masks)
    cache = open_cache(str(directory))
    done = export_lance(cache, str(tmp_path / "out"))
    found = lance.dataset(str(tmp_path / "out"))
    assert found.count_rows() == done.sequences == len(cache)
    expected = cache.to_arrow().read_all()
    assert found.to_table().to_pylist() == expected.to_pylist()
    assert ("loss_mask" in found.schema.names) == masks
    assert found.take([3, len(cache) - 1])["tokens"].to_pylist() == [expected["tokens"][row].as_py() for row in (3, -1)]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    pytest.importorskip("lance", reason="pylance is not installed: pip install pylance")
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 50), "laws": words(2, 9)})))
    assert export_lance(cache, str(tmp_path / "out"), "laws").sequences == 9
    with pytest.raises(UsageError, match="is not empty"):
        export_lance(cache, str(tmp_path / "out"))


def test_what_was_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lance", reason="pylance is not installed: pip install pylance")
    cache = open_cache(str(make_cache(tmp_path / "made", {"web": words(1, 50)})))
    written = lance_export._written
    monkeypatch.setattr(lance_export, "_written", lambda dataset: written(_without_last(dataset)))
    with pytest.raises(CorruptError, match="holds 49 documents with"):
        export_lance(cache, str(tmp_path / "out"))


class _without_last:
    """A dataset whose last row is lost."""

    def __init__(self, dataset: object) -> None:
        self.dataset = dataset

    def to_batches(self, **options: object) -> list[object]:
        batches = list(self.dataset.to_batches(**options))  # pyright: ignore[reportAttributeAccessIssue]
        return [*batches[:-1], batches[-1].slice(0, batches[-1].num_rows - 1)]
