"""Arrow imports no pandas in datakit's own processes, but recognizes objects of pandas once it is admitted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import datakit
from tests.support.command_line import command
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import write_lines

pytest.importorskip("pandas")

PROGRAM = """
import sys
from datakit.engine.arrow_without_pandas import admit_pandas, leave_out_pandas
import pyarrow as pa
leave_out_pandas()
pa.array([1, 2])
assert "pandas" not in sys.modules
admit_pandas()
import pandas as pd
print(pa.array(pd.Series([1.0, float("nan")])).null_count)
"""

TRANSFORM = """
import pyarrow as pa

def with_pandas(batch):
    import pandas as pd
    column = pa.array(pd.Series([1.0 if n % 2 else float("nan") for n in range(batch.num_rows)]))
    return batch.append_column("score", column)
"""


def test_objects_of_pandas_are_recognized_once_pandas_is_admitted() -> None:
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


def test_transform_may_use_pandas(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [f"text {number}" for number in range(10)])
    (tmp_path / "transforms.py").write_text(TRANSFORM)
    source = '[[sources]]\nname = "texts"\nurl = "texts"\ntransform = "transforms:with_pandas"\ntransform_version = 1\n'
    (tmp_path / "r.toml").write_text(f'name = "r"\n{source}')
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=1, until="normalize")
    (step,) = result.steps_of("normalize")
    tables = [pq.read_table(f"{step.directory}/{part.path}") for part in step.manifest.partitions]
    assert sum(table["score"].null_count for table in tables) == 5, "NaN of pandas is null in Arrow"


def test_driver_of_a_run_imports_no_pandas(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", ["a text"])
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "texts"\nurl = "texts"\n')
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps([name in sys.modules for name in ('pandas', 'numba')])))\n"
    )
    path = f"{tmp_path}:{REPOSITORY}"
    ran = command("run", tmp_path / "r.toml", "--root", "root", cwd=tmp_path, PYTHONPATH=path)
    assert json.loads(ran.stdout.splitlines()[-1]) == [False, False], ran.stderr
