"""Small files that stand for huge ones are refused by name before they fill the disk."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datakit
from datakit.errors import ExpansionError, RefusedError, RefusedInputsError
from datakit.recipe import Recipe, parse_recipe
from tests.support.trees import tree

FLOOR = 4_000_000
ROWS = 200


def write_bomb(path: Path, rows: int = ROWS, text_bytes: int = 50_000) -> None:
    """Write a sound Parquet file of which each row refers to one of four long texts, which are stored once."""
    texts = pa.array([os.urandom(text_bytes // 2).hex() for _ in range(4)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows) % 4, pa.int32()), texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": column}), path, compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert path.stat().st_size < 3 * text_bytes


def write_lines(path: Path, count: int) -> None:
    """Write honest JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (f"{number} {os.urandom(500).hex()}" for number in range(count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def recipe(folder: Path, *sources: str, **limits: int) -> Recipe:
    """A recipe of these folders, whose limit is low."""
    table = {
        "name": "bombs",
        "sources": [{"name": name, "url": str(folder / name)} for name in sources],
        "limits": {"max_expansion": 10, "expansion_floor_bytes": FLOOR, **limits},
    }
    return parse_recipe(table, "test", folder)


def exchanged(root: Path) -> int:
    """The size of all exchange files below a root."""
    return sum(path.stat().st_size for path in root.rglob("exchange/**/*") if path.is_file())


def test_dictionary_bomb_is_refused_by_name(tmp_path: Path) -> None:
    write_bomb(tmp_path / "data" / "bomb.parquet")
    with pytest.raises(ExpansionError, match=r"^bomb.parquet: .* limit is 4,000,000 bytes .* limits.max_expansion"):
        datakit.run(recipe(tmp_path, "data"), tmp_path / "root", workers=1)
    assert exchanged(tmp_path / "root") <= FLOOR
    assert not list((tmp_path / "root").rglob("normalize-*/manifest.json"))


def test_bomb_in_a_compressed_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_lines(folder / "honest.jsonl", 100)
    lines = (b'{"text": "%d"}\n' % number for number in range(300_000))
    (folder / "bomb.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    with pytest.raises(ExpansionError, match=r"^bomb.jsonl.gz: "):
        datakit.run(recipe(tmp_path, "data"), tmp_path / "root", workers=1)


def write_beside(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that writes far more than it returns."""
    Path(os.devnull).write_bytes(bytes(2 * FLOOR))
    return batch


def test_what_a_transform_writes_counts_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "data" / "honest.jsonl", 10)
    table = recipe(tmp_path, "data").document()
    table["normalize"] = {"transform": f"{__name__}:write_beside", "transform_version": 1}
    with pytest.raises(ExpansionError, match=r"^honest.jsonl: .* at least 8,\d+,\d+ bytes"):
        datakit.run(parse_recipe(table, "test", tmp_path), tmp_path / "root", workers=1)


def test_bomb_is_named_although_an_honest_file_follows(tmp_path: Path) -> None:
    write_bomb(tmp_path / "data" / "a.parquet", rows=70)  # 3.5 MB, below the limit
    write_lines(tmp_path / "data" / "b.jsonl", 600)  # 0.6 MB: both are one task
    with pytest.raises(ExpansionError, match=r"^a.parquet: "):
        datakit.run(recipe(tmp_path, "data", max_expansion=1), tmp_path / "root", workers=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_all_bombs_are_reported_and_other_sources_finish(tmp_path: Path, workers: int) -> None:
    for name in ("bad", "worse"):
        write_bomb(tmp_path / name / f"{name}.parquet")
    write_lines(tmp_path / "good" / "a.jsonl", 10)
    with pytest.raises(RefusedInputsError) as raised:
        datakit.run(recipe(tmp_path, "bad", "good", "worse"), tmp_path / "root", workers=workers)
    named = [message.partition(": reading")[0] for message in raised.value.messages]
    assert named == ["bad: bad.parquet", "worse: worse.parquet"]
    assert len(list((tmp_path / "root" / "sources" / "good").glob("normalize-*/manifest.json"))) == 1


def test_higher_limit_continues_with_the_same_output(tmp_path: Path) -> None:
    write_bomb(tmp_path / "data" / "bomb.parquet")
    write_lines(tmp_path / "data" / "honest.jsonl", 10)
    with pytest.raises(RefusedError):
        datakit.run(recipe(tmp_path, "data"), tmp_path / "root", workers=1)
    datakit.run(recipe(tmp_path, "data", max_expansion=10_000), tmp_path / "root", workers=1)
    datakit.run(recipe(tmp_path, "data", max_expansion=20_000), tmp_path / "quiet", workers=1)
    assert tree(str(tmp_path / "root")) == tree(str(tmp_path / "quiet"))
    assert datakit.run(recipe(tmp_path, "data"), tmp_path / "root", workers=1).reused, "a finished step stays done"
