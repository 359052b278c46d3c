"""The normalize step as a whole: its output contract, whatever the input, slices and order of tasks."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from datakit.errors import ColumnError, EmptyStageError
from datakit.normalize.columns.upstream_columns import LEADING
from datakit.normalize.config import Config
from datakit.normalize.readers import slices
from datakit.normalize.stage import partition_bits, route_memory
from tests.support.data import need_data
from tests.support.engine.exchange_runs import MERGES
from tests.support.normalize.sources import SOURCE, check_contract, normalize, write_lines


@pytest.mark.parametrize(
    "file", [pytest.param("tldr.parquet", marks=pytest.mark.soak), "nltk-udhr2.jsonl.gz", "code-datatrove.jsonl.zst"]
)
def test_real_text_is_complete(tmp_path: Path, file: str) -> None:
    path = need_data() / "text" / file
    result = normalize(tmp_path, path)
    check_contract(result)
    records = _records(path)
    assert result["records_in"] == len(records)
    first = {record["text"]: record["id"] for record in reversed(records) if record["text"].strip()}
    assert {row["text"]: row["source_id"] for row in result.rows()} == first
    assert {row["upstream_source"] for row in result.rows()} == {record["source"] for record in records}


def _records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    data = path.read_bytes()
    raw = gzip.decompress(data) if path.suffix == ".gz" else zstandard.ZstdDecompressor().stream_reader(data).read()
    return [json.loads(line) for line in raw.splitlines()]


def test_memory_follows_the_longest_permitted_record() -> None:
    assert route_memory(Config()) == 1 << 30
    assert route_memory(Config(max_document_bytes=1 << 30)) == (1 << 30) + 4 * (768 << 20)


def test_partition_count_follows_text_bytes() -> None:
    mebibyte, gibibyte = 1 << 20, 1 << 30
    assert [partition_bits(size) for size in (0, 32 * mebibyte - 1, 32 * mebibyte, gibibyte)] == [0, 0, 1, 6]
    assert partition_bits(gibibyte + 1) == 4, "above 1 GiB of text partitions are under 128 MiB"
    assert partition_bits(1 << 40) == 14
    assert partition_bits((1 << 40) + 1) == 11, "above 1 TiB they are under 1 GiB"
    assert partition_bits(1000, 100) == 4


def test_normalizing_again_changes_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"id": f"d{n}", "text": f"text {n % 40}", "n": n} for n in range(50)))
    once = normalize(tmp_path / "once", tmp_path / "in.jsonl")
    again = normalize(tmp_path / "again", f"{once.directory}/data/{SOURCE}/part-*.parquet")
    assert again.rows() == once.rows()
    assert again.duplicates() == [], "no duplicates are left"


RAW = {"id": "a1", "text": "a", "source": "web", "source_id": "b2", "edited_id": "c3"}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_raw_columns_with_our_names_lose_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in{suffix}"
    write_lines(path, RAW) if suffix == ".jsonl" else pq.write_table(pa.Table.from_pylist([RAW]), path)
    (row,) = normalize(tmp_path, path).rows()
    assert (row["source_id"], row["upstream_source"], row["upstream_source_id"]) == ("a1", "web", "b2")
    assert row["upstream_edited_id"] == "c3", "edited_id is a column of datakit"
    assert row["edited_id"] is None


@pytest.mark.parametrize("wrong", ["a1", "0" * 31 + "G", "0" * 31 + "A"])
def test_our_columns_with_other_ids_are_raw(tmp_path: Path, wrong: str) -> None:
    pq.write_table(pa.Table.from_pylist([RAW | {"id": wrong}], LEADING), tmp_path / "in.parquet")
    (row,) = normalize(tmp_path, tmp_path / "in.parquet").rows()
    assert (row["source_id"], row["upstream_source_id"]) == (wrong, "b2")


def test_documents_beside_raw_records_are_raw(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "b.jsonl", {"id": 7, "text": "b"})
    pq.write_table(pa.Table.from_pylist([RAW | {"id": "0" * 32}], LEADING), tmp_path / "in" / "a.parquet")
    rows = {row["text"]: row for row in normalize(tmp_path, tmp_path / "in").rows()}
    assert [rows[text]["source_id"] for text in "ab"] == ["0" * 32, "7"]
    assert [rows[text]["upstream_source_id"] for text in "ab"] == ["b2", None]


def test_upstream_columns_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_lines(source / "a.jsonl", {"id": 7, "text": "a", "source": "web", "n": 1, "meta": {"x": 1}, "e": {}})
    write_lines(source / "b.jsonl", {"text": "b", "n": 1.5, "meta": {"y": "2"}, "day": "2020-01-01", "none": None})
    pq.write_table(pa.table({"text": ["c"], "n": ["many"], "tags": [["p", "q"]]}), source / "c.parquet")
    result = normalize(tmp_path, source)
    check_contract(result)
    rows = {row["text"]: row for row in result.rows()}
    assert [rows[text]["source_id"] for text in "abc"] == ["7", None, None]
    assert [rows[text]["source"] for text in "abc"] == ["shelf"] * 3
    assert [rows[text]["upstream_source"] for text in "abc"] == ["web", None, None]
    assert [rows[text]["n"] for text in "abc"] == ["1", "1.5", "many"], "int -> float -> string"
    assert [rows[text]["meta"] for text in "abc"] == [{"x": 1, "y": None}, {"x": None, "y": "2"}, None]
    assert [rows[text]["e"] for text in "abc"] == ["{}", None, None]
    assert [rows[text]["day"] for text in "abc"] == [None, "2020-01-01", None], "a string stays a string"
    assert [rows[text]["none"] for text in "abc"] == [None] * 3
    assert [rows[text]["tags"] for text in "abc"] == [None, None, ["p", "q"]]


def test_conflicting_types_name_both_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", {"text": "a", "meta": {"x": 1}})
    write_lines(tmp_path / "in" / "b.jsonl", {"text": "b", "meta": 5})
    with pytest.raises(ColumnError, match=r"'meta'.*a\.jsonl.*b\.jsonl.*drop = \['meta'\]"):
        normalize(tmp_path / "one", tmp_path / "in")
    result = normalize(tmp_path / "two", tmp_path / "in", drop=["meta"])
    assert {row["text"] for row in result.rows()} == {"a", "b"}
    assert "meta" not in result.table().schema.names


def test_empty_result_reports_the_counts(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": " "}, {"text": None}, {"text": ""})
    with pytest.raises(EmptyStageError, match=r"of its 3 records, none .*\(1 missing, 2 blank\); is 'text'"):
        normalize(tmp_path, tmp_path / "in.jsonl")


def test_bytes_do_not_depend_on_task_order(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(6):
        records = [{"id": f"{number}-{n}", "text": f"text {n * number % 70}", "n": n / 2} for n in range(60)]
        write_lines(source / f"{number}.jsonl", *records, {"text": f"only {number}", f"column {number}": number})
    with patch.object(slices, "SLICE_BYTES", 800), patch.object(slices, "FILE_OVERHEAD", 0):
        forward = normalize(tmp_path / "forward", source, partition_bytes=500)
        with ExitStack() as patches:
            for name, size in (MERGES | {"datakit.normalize.route.BUDGET_BYTES": 2_000}).items():
                patches.enter_context(patch(name, size))
            backward = normalize(tmp_path / "backward", source, backwards=True, partition_bytes=500)
        routed = [result for result in forward.results if "runs" in result.details]
    whole = normalize(tmp_path / "whole", source, partition_bytes=500)
    assert len(routed) > 20 and len(forward.manifest.partitions) >= 4
    assert len(backward.results) > len(forward.results) + 4, "runs were merged"
    assert forward.files() == backward.files() == whole.files(), "slices and merges do not matter either"
    check_contract(forward)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_counts_do_not_depend_on_slices(tmp_path: Path, suffix: str) -> None:
    records = _records(need_data() / "text" / "tldr.parquet")[:1500]
    path = tmp_path / f"in{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=100)
    else:
        data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with patch.object(slices, "SLICE_BYTES", 20_000):
        result = normalize(tmp_path, path)
    slice_count = sum("runs" in task.details for task in result.results)
    assert slice_count == 1 if suffix.endswith("gz") else slice_count > 10
    assert Counter(row["text"] for row in result.rows()) == dict.fromkeys({record["text"] for record in records}, 1)
    check_contract(result)
