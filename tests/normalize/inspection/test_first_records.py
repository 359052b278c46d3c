"""`datakit plan` warns about columns that the first records of a file do not have."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.normalize.config import Config
from datakit.normalize.inspection.first_records import missing_columns
from tests.support.command_line import invoke

CONTENTS = {
    "a.jsonl": b'\xef\xbb\xbf{"body": "one", "label": "x"}\n{"body": "two", "n": 1}\n',
    "a.csv": b'body,"label",n\none,x,1\n',
    "a.tsv.gz": gzip.compress(b"body\tlabel\tn\none\tx\t1\n"),
}


@pytest.fixture(params=[*CONTENTS, "a.parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with the columns body, label and n."""
    path = tmp_path / request.param
    if path.name in CONTENTS:
        path.write_bytes(CONTENTS[path.name])
    else:
        pq.write_table(pa.table({"body": ["one"], "label": ["x"], "n": [1]}), path)
    return path


def warnings(file: Path, config: Config) -> list[str]:
    return list(missing_columns("web", str(file.parent), file.name, config))


def test_missing_columns_are_named_with_the_nearest(file: Path) -> None:
    found = warnings(file, Config(text="bdy", id="n", where="lable = 'x' and n = 1"))
    assert found == [
        f"warning: source 'web': text: the first records of {file.name} have no column 'bdy'; did you mean 'body'?",
        f"warning: source 'web': where: the first records of {file.name} have no column 'lable'; did you mean 'label'?",
    ]


def test_existing_columns_lead_to_no_warning(file: Path) -> None:
    assert warnings(file, Config(text="body", where="label = 'x'")) == []
    assert warnings(file, Config(text="made", transform="some:thing", transform_version=1)) == []


def test_unreadable_files_are_left_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("no record\nat all\n")
    (tmp_path / "b.parquet").write_text("?")
    assert [*warnings(tmp_path / "a.jsonl", Config()), *warnings(tmp_path / "b.parquet", Config())] == []


def test_plan_prints_the_warning(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CONTENTS["a.csv"])
    (tmp_path / "r.toml").write_text('name = "r"\n[[sources]]\nname = "web"\nurl = "a.csv"\n')
    planned = invoke("plan", "r.toml", cwd=tmp_path)
    assert planned.returncode == 0
    assert "warning: source 'web': text: the first records of a.csv have no column 'text'" in planned.stderr
