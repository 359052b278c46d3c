"""The tables of a step have the rows, the attributes and the order that the annotators and the partitions determine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from datakit.annotate import stage, tables, write_tables
from datakit.annotate.annotator import SPANS, TEXT
from datakit.annotate.tables import TABLES, Table
from datakit.engine.task import Step, StepInput
from datakit.errors import ColumnError, CorruptError, TaskError
from datakit.storage.manifest import Manifest
from datakit.storage.parquet import read_shard
from tests.support.dedup.dedup_inputs import write_source
from tests.support.engine.inline import finish_inline, run_plan_inline

TEXTS = [f"text {number} {'x' * (number % 7)}" for number in range(60)]


@dataclass
class Lengths:
    """A dense annotator: the number of bytes of each text."""

    columns: tuple[str, ...] = (TEXT,)
    name: str = "lengths"
    version: int = 1
    sparse: bool = False
    schema: ClassVar[pa.Schema] = pa.schema([pa.field("bytes", pa.int64())])

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array(len(text.as_py().encode()) for text in batch.column(0))], schema=self.schema
        )


@dataclass
class Sevens:
    """A sparse annotator: spans of the digit 7."""

    columns: tuple[str, ...] = (TEXT,)
    name: str = "sevens"
    version: int = 1
    sparse: bool = True
    schema: ClassVar[pa.Schema] = pa.schema([pa.field("spans", SPANS)])

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = [[{"start": place, "stop": place + 1, "kind": "seven"} for place, letter in enumerate(text)
                  if letter == "7"] for text in batch.column(0).to_pylist()]  # fmt: skip
        return pa.RecordBatch.from_arrays([pa.array(found, SPANS)], schema=self.schema)


@dataclass(frozen=True)
class LengthsSettings:
    VERSION: ClassVar[int] = 1
    column: str = TEXT

    def annotator(self) -> Lengths:
        return Lengths((self.column,))


@dataclass(frozen=True)
class SevensSettings:
    VERSION: ClassVar[int] = 1

    def annotator(self) -> Sevens:
        return Sevens()


@pytest.fixture(autouse=True)
def _two_annotators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(TABLES, "lengths", Table(f"{__name__}:LengthsSettings"))
    monkeypatch.setitem(TABLES, "sevens", Table(f"{__name__}:SevensSettings"))
    tables.built_in.cache_clear()
    yield
    tables.built_in.cache_clear()


def annotated(source: StepInput, root: Path, **annotators: dict[str, Any]) -> Manifest:
    """Run the stage."""
    step = Step("annotate", "s", str(root / "annotate"), "0" * 32, {"annotators": annotators}, (source,))
    output, results = run_plan_inline(stage.plan(step), step.directory)
    return finish_inline(step, output, results)


def rows(manifest: Manifest, root: Path, table: str) -> list[dict[str, Any]]:
    """Read an annotator's tables."""
    paths = [part.path for part in manifest.partitions if f"/{table}/" in part.path]
    return [row for path in paths for row in read_shard(str(root / "annotate" / path)).to_pylist()]


def documents(source: StepInput) -> list[tuple[str, str]]:
    found = [read_shard(f"{source.directory}/{part.path}") for part in source.manifest.partitions]
    return [pair for one in found for pair in zip(one["id"].to_pylist(), one["text"].to_pylist(), strict=True)]


def test_dense_table_has_every_document_and_sparse_table_only_those_with_attributes(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", TEXTS, bits=2)
    manifest = annotated(source, tmp_path, lengths={}, sevens={})
    expected = documents(source)
    assert rows(manifest, tmp_path, "lengths") == [{"id": one, "bytes": len(text)} for one, text in expected]
    spans = {row["id"]: [span["start"] for span in row["spans"]] for row in rows(manifest, tmp_path, "sevens")}
    assert spans == {one: [at for at, letter in enumerate(text) if letter == "7"]
                     for one, text in expected if "7" in text}  # fmt: skip
    assert manifest.counters["annotate/documents"] == manifest.counters["annotate/lengths"] == len(TEXTS)
    assert manifest.counters["annotate/sevens"] == len(spans)


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_batches_do_not_change_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    source = write_source(tmp_path, "s", TEXTS, bits=1)
    whole = annotated(source, tmp_path / "whole", lengths={}, sevens={})
    monkeypatch.setattr(write_tables, "BATCH_BYTES", size)
    cut = annotated(source, tmp_path / "cut", lengths={}, sevens={})
    assert [(part.path, part.xxh3) for part in cut.partitions] == [(part.path, part.xxh3) for part in whole.partitions]


def test_adding_an_annotator_does_not_change_the_tables_of_the_others(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", TEXTS)
    both = annotated(source, tmp_path / "both", lengths={}, sevens={})
    alone = annotated(source, tmp_path / "alone", sevens={})
    assert [part.xxh3 for part in both.partitions if "/sevens/" in part.path] == [p.xxh3 for p in alone.partitions]


def test_missing_column_is_named(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", TEXTS)
    with pytest.raises(ColumnError, match=r"annotator 'lengths' reads the column 'url', .* columns are id, text"):
        annotated(source, tmp_path, lengths={"column": "url"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda batch: batch.slice(1), r"'lengths' returned \d+ rows for 60 documents"),
        (lambda batch: batch.to_pylist(), "'lengths' returned list, not the columns"),
        (lambda batch: batch.rename_columns(["other"]), "'lengths' returned other: int64, not the columns"),
    ],
    ids=["too few rows", "no table", "another column"],
)
def test_wrong_answer_of_an_annotator_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, message: str
) -> None:
    right = Lengths.annotate
    monkeypatch.setattr(Lengths, "annotate", lambda self, batch: answer(right(self, batch)))
    with pytest.raises(TaskError, match=message):
        annotated(write_source(tmp_path, "s", TEXTS), tmp_path, lengths={})


def test_ids_out_of_order_are_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", TEXTS)
    path = Path(source.directory, source.manifest.partitions[0].path)
    table = read_shard(str(path)).sort_by([("id", "descending")])
    path.unlink()
    with write_tables.ShardWriter(str(path), table.schema) as writer:
        writer.write(table)
    with pytest.raises(CorruptError, match="ids are not strictly ascending"):
        annotated(source, tmp_path, lengths={})
