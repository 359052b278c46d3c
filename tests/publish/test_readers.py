"""The usual libraries for datasets open a publication without any conversion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

import datakit
from datakit.publish import prepare, publish
from tests.support.hub_upload.server import Server
from tests.support.published.shelf import SOURCES
from tests.support.small_shelf import prose, step, write_lines


@pytest.fixture(scope="module")
def published(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("out") / "published"
    publish(prepare(str(dataset), str(place)))
    return place


def expected(dataset: Path, source: str) -> list[dict[str, Any]]:
    """The rows of the consolidate step, read with Arrow alone."""
    return pq.read_table(next(step(dataset, "consolidate-*").glob(f"data/{source}/*.parquet"))).to_pylist()


def test_datasets_opens_every_configuration(dataset: Path, published: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    for source in SOURCES:
        found = datasets.load_dataset(str(published), source, split="train", cache_dir=str(tmp_path))
        assert list(found) == expected(dataset, source)
    whole = datasets.load_dataset(str(published), split="train", cache_dir=str(tmp_path))
    assert list(whole) == [row for source in SOURCES for row in expected(dataset, source)]
    streamed = datasets.load_dataset(str(published), "laws", split="train", streaming=True)
    assert list(streamed) == expected(dataset, "laws")


LOADED = """
import json, sys, datasets
found = datasets.load_dataset("org/shelf", "laws", split="train", cache_dir=sys.argv[1])
whole = datasets.load_dataset("org/shelf", split="train", cache_dir=sys.argv[1])
print(json.dumps([list(found), whole.num_rows]))
"""


def test_datasets_opens_the_repository_on_the_hub(dataset: Path, hub: Server, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    publish(prepare(str(dataset), "hf://datasets/org/shelf"))
    found = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "cache")], env={**os.environ, "HF_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert json.loads(found.stdout.splitlines()[-1]) == [expected(dataset, "laws"), 3 * 599]


@pytest.fixture(scope="module")
def various(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A publication of two sources: one with a struct and a list, and one whose documents are all duplicates."""
    folder = tmp_path_factory.mktemp("various")
    records = ({"text": prose(n), "n": n, "meta": {"page": n}, "tags": ["a", "b"]} for n in range(9))
    (folder / "notes").mkdir()
    (folder / "notes" / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    write_lines(folder / "copies" / "a.jsonl", [prose(3), prose(4)])
    table = '[[sources]]\nname = "{0}"\nurl = "{0}"\nlicense = "MIT"\n'
    sources = table.format("notes") + table.format("copies")
    (folder / "notes.toml").write_text(f'name = "notes"\n{sources}[dedup]\nmax_removal = 1.0\n')
    datakit.run(folder / "notes.toml", folder / "root", workers=2)
    publish(prepare(str(folder / "root" / "notes"), str(folder / "published")))
    return folder / "published"


def test_nested_columns_and_empty_sources_open_everywhere(various: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    notes = datasets.load_dataset(str(various), "notes", split="train", cache_dir=str(tmp_path))
    assert sorted(row["meta"]["page"] for row in notes) == list(range(9))
    assert datasets.get_dataset_config_names(str(various)) == ["notes"], "an empty configuration would be an error"
    assert polars.read_parquet(f"{various}/data/notes/*.parquet")["tags"].to_list() == [["a", "b"]] * 9
    assert polars.read_parquet(f"{various}/data/copies/*.parquet").height == 0
    pages = duckdb.connect().execute(f"SELECT meta.page FROM '{various}/data/notes/*.parquet' ORDER BY 1").fetchall()
    assert pages == [(page,) for page in range(9)]
    assert len(pd.read_parquet(various / "data" / "copies")) == 0


def test_duckdb_reads_the_files(dataset: Path, published: Path) -> None:
    found = duckdb.connect().execute(f"SELECT * FROM '{published}/data/letters/*.parquet'").fetchall()
    assert found == [tuple(row.values()) for row in expected(dataset, "letters")]
    counted = (
        duckdb.connect()
        .execute(f"SELECT source, count(*) FROM '{published}/data/*/*.parquet' GROUP BY 1 ORDER BY 1")
        .fetchall()
    )
    assert counted == [(source, 599) for source in sorted(SOURCES)]


def test_polars_reads_the_files(dataset: Path, published: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    assert polars.read_parquet(f"{published}/data/novels/*.parquet").to_dicts() == expected(dataset, "novels")
    scanned = polars.scan_parquet(f"{published}/data/**/*.parquet").select("source").collect()
    assert scanned["source"].n_unique() == len(SOURCES)


def test_pandas_reads_the_files(dataset: Path, published: Path) -> None:
    found = pd.read_parquet(published / "data" / "laws")
    assert found["id"].tolist() == [row["id"] for row in expected(dataset, "laws")]
    assert found["text"].tolist() == [row["text"] for row in expected(dataset, "laws")]
