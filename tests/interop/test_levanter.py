"""Tests of reading caches in the Levanter layout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from datakit.errors import CorruptError, NotFoundError, UnreadableError, UsageError
from datakit.interop import levanter
from datakit.interop.levanter import is_levanter, read_levanter
from tests.support.partitions import contents
from tests.support.tokens.external_caches import (
    assert_documents,
    consolidated,
    documents,
    imported,
    sharded,
    write_ledger,
)


@pytest.mark.parametrize("copy", [False, True])
def test_consolidated_cache_is_imported(tmp_path: Path, tokenizer: str, copy: bool) -> None:
    rows = documents(1, 120)
    rows[50:50] = [np.zeros(9000, np.int32)]  # chunks and a whole file of zeros are missing
    original = consolidated(tmp_path / "old", rows)
    before = contents(original)
    assert_documents(imported(original, tmp_path / "new", tokenizer, copy), rows)
    assert contents(original) == before
    assert (tmp_path / "new/data/old/shard-00000/c/0").exists() == copy


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("layout", ["sharded", None])
def test_sharded_cache_is_imported(
    tmp_path: Path, tokenizer: str, copy: bool, layout: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levanter, "CACHE_BYTES", 1)
    groups = [documents(1, 40), [], documents(2, 60)]
    original = sharded(tmp_path / "old", groups, **({"layout": layout} if layout else {}))
    assert_documents(imported(original, tmp_path / "new", tokenizer, copy), [*groups[0], *groups[2]])


def test_pipes_among_the_chunks_are_refused(tmp_path: Path) -> None:
    original = consolidated(tmp_path / "old", documents(6, 20))
    chunk = next(path for path in original.rglob("*") if path.is_file() and path.parent.name == "c")
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(UnreadableError, match=f"{chunk.name} is a named pipe, not a file"):
        list(read_levanter(str(original)))


def test_inconsistent_caches_are_refused(tmp_path: Path, tokenizer: str) -> None:
    rows = documents(6, 20)
    original = consolidated(tmp_path / "old", rows)
    with pytest.raises(NotFoundError, match="is 'tokens' the right field"):
        list(read_levanter(str(original), "tokens"))
    write_ledger(original, {"only": 21})
    with pytest.raises(CorruptError, match="offsets list 20 rows, but the ledger lists 21"):
        list(read_levanter(str(original)))
    write_ledger(original, {"only": 20}, is_finished=False)
    with pytest.raises(UsageError, match="is not finished"):
        list(read_levanter(str(original)))
    write_ledger(original, {"a": 10, "b": 10}, total_num_rows=30, layout="sharded")
    with pytest.raises(CorruptError, match="the shards have 20 rows in total, but total_num_rows is 30"):
        list(read_levanter(str(original)))
    write_ledger(original, {"../../elsewhere": 20}, layout="sharded")
    with pytest.raises(CorruptError, match=r"names the shard '../../elsewhere', which is outside the cache"):
        list(read_levanter(str(original)))
    assert not is_levanter(str(tmp_path / "nothing"))
    write_ledger(original, {"only": 20})
    imported(original, tmp_path / "new", tokenizer, copy=True)
    with pytest.raises(UsageError, match="already holds a finished step"):
        imported(original, tmp_path / "new", tokenizer, copy=True)
