"""Each table of attributes belongs to a partition, and lists documents of it in their order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datakit.api import run
from datakit.storage.manifest import find_manifest
from datakit.validate.between import attributes
from datakit.validate.finding import Result
from datakit.validate.subject import open_subject

STRANGE = pa.array(["f" * 32])


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("attributes")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": f"Text {number}"}) + "\n" for number in range(20)))
    recipe = folder / "shelf.toml"
    recipe.write_text('name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n[annotate.script]\n')
    return run(recipe, root=folder / "root", workers=1, until="annotate").steps_of("annotate")[0].directory


def findings(step: str, *, without: str = "") -> list[str]:
    """Check the step. without: a part of the path of the tables that its manifest does not list."""
    manifest = find_manifest(step)
    assert manifest is not None
    if without:
        kept = [part for part in manifest.partitions if without not in part.path]
        manifest = msgspec.structs.replace(manifest, partitions=kept)
    subject, problem = open_subject(step, manifest)
    assert not problem
    result = Result("attributes")
    attributes.check(subject, result)
    return [finding.difference for finding in result.findings]


def test_tables_of_a_run_agree_with_their_documents(step: str) -> None:
    assert findings(step) == []


def test_missing_table_is_found(step: str) -> None:
    (found,) = findings(step, without="script")
    assert found.startswith("lists no table data/a/script/part-00000-of-00001.parquet")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda table: table.take([1, 0, *range(2, 20)]), "has rows in another order than .* row 1"),
        (lambda table: table.take([0, *range(20)]), "or twice: row 1"),
        (lambda table: pa.concat_tables([table, table.slice(0, 1).set_column(0, table.schema.field("id"), STRANGE)]),
         "a document that is not in .* row 20"),
    ],
    ids=["order", "twice", "strange"],
)  # fmt: skip
def test_changed_rows_are_found(step: str, change: Callable[[pa.Table], pa.Table], problem: str) -> None:
    path = Path(step, "data/a/script/part-00000-of-00001.parquet")
    before = path.read_bytes()
    try:
        pq.write_table(change(pq.read_table(path)), path)
        (found,) = findings(step)
    finally:
        path.write_bytes(before)
    assert re.search(problem, found)
