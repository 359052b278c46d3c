"""Tasks do not import pandas, and a user's code can use pandas with Arrow as usual."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import datakit
from datakit.recipe import parse_recipe
from datakit.storage.manifest import read_manifest
from datakit.storage.parquet import read_shard
from tests.support.command_line import command
from tests.support.normalize.sources import write_lines
from tests.support.paths import REPOSITORY

pytest.importorskip("pandas")

PROGRAM = """
import sys
from datakit.engine.arrow_without_pandas import find_pandas_again, leave_out_pandas
leave_out_pandas()
import pyarrow as pa
pa.array([1, None])
print("pandas" in sys.modules)
import pandas
times = pandas.Series(pandas.to_datetime(["2020-01-01T00:00:00.000000001"]))
find_pandas_again()
print(pa.array(pandas.Categorical(["a", "b", "a"])).type, pa.array(times)[0].as_py() == times[0])
print(pa.RecordBatch.from_pandas(pandas.DataFrame({"a": [1]})).num_rows)
"""


def test_arrow_finds_pandas_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert first == "False"
    assert second.startswith("dictionary<") and second.endswith(" True")
    assert third == "1"


def with_pandas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Import pandas only when called, and pass a pandas object to Arrow (a transform)."""
    import pandas

    sizes = pa.array(pandas.Categorical(batch.to_pandas()["text"].str.len().astype(str)))
    assert pa.types.is_dictionary(sizes.type), "without pandas, Arrow would take the categories for a list of strings"
    return batch.append_column("size", sizes.cast(pa.large_string()))


def test_a_transform_can_use_pandas(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"text": "x" * size} for size in (3, 5)))
    source = {
        "name": "in",
        "url": str(tmp_path / "in.jsonl"),
        "transform": f"{__name__}:with_pandas",
        "transform_version": 1,
    }
    recipe = parse_recipe({"name": "pandas", "sources": [source]}, "test", tmp_path)
    (step,) = datakit.run(recipe, root=str(tmp_path / "root")).steps_of("normalize")
    parts = [read_shard(f"{step.directory}/{part.path}") for part in read_manifest(step.directory).partitions]
    rows = [row for part in parts for row in part.to_pylist()]
    assert {row["text"]: str(row["size"]) for row in rows} == {"xxx": "3", "xxxxx": "5"}


def test_driver_of_a_run_imports_no_pandas(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", {"text": "a text"})
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "texts"\nurl = "texts"\n')
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps([name in sys.modules for name in ('pandas', 'numba')])))\n"
    )
    path = f"{tmp_path}:{REPOSITORY}"
    ran = command("run", tmp_path / "r.toml", "--root", "root", cwd=tmp_path, PYTHONPATH=path)
    assert json.loads(ran.stdout.splitlines()[-1]) == [False, False], ran.stderr
