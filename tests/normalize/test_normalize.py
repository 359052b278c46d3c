"""What normalize promises about its output, seen from outside."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from datakit.engine.task import TaskContext
from datakit.errors import ColumnError, EmptyStageError, PartialError, RecipeError, UnreadableError
from datakit.normalize.config import Config
from datakit.normalize.readers import slices
from datakit.normalize.stage import output_schema, partition_bits
from tests.support.data import need_data
from tests.support.sources import Normalized, normalize


def write_lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records))
    return path


def check_contract(result: Normalized) -> None:
    """What holds of every normalized source."""
    manifest, table = result.manifest, result.table()
    ids, texts = table.column("id").to_pylist(), table.column("text").to_pylist()
    assert table.schema.names[:4] == ["id", "text", "source", "source_id"]
    assert table.schema.types[:4] == [pa.string(), pa.large_string(), pa.string(), pa.string()]
    assert ids == [xxhash.xxh3_128_hexdigest(text.encode()) for text in texts]
    assert all(before < after for before, after in pairwise(ids)), "ids must ascend strictly"
    count = len(manifest.partitions)
    assert count & (count - 1) == 0
    for number, part in enumerate(manifest.partitions):
        assert part.path == f"part-{number:05d}-of-{count:05d}.parquet"
        rows = pq.read_table(f"{result.directory}/{part.path}")
        there = rows.column("id").to_pylist()
        assert [int(document[:8], 16) * count >> 32 for document in there] == [number] * len(there)
        assert (part.first_id, part.last_id) == ((there[0], there[-1]) if there else (None, None))
        assert part.rows == len(there)
        assert part.text_bytes == sum(len(text.encode()) for text in rows.column("text").to_pylist())
    gone = ("blank", "duplicates", "where_dropped", "sample_dropped", "transform_dropped", "quarantined")
    left = result["records_in"] + result["transform_added"] - sum(result[name] for name in gone)
    assert left == result["records_out"] == manifest.totals.rows == len(ids)


@pytest.mark.parametrize("file", ["tldr.parquet", "nltk-udhr2.jsonl.gz", "code-datatrove.jsonl.zst"])
def test_real_text_comes_out_whole(tmp_path: Path, file: str) -> None:
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


def test_partitions_by_the_bytes_of_text() -> None:
    mebibyte, gibibyte = 1 << 20, 1 << 30
    assert [partition_bits(size) for size in (0, 32 * mebibyte - 1, 32 * mebibyte, gibibyte)] == [0, 0, 1, 6]
    assert partition_bits(gibibyte + 1) == 4, "above 1 GiB of text partitions are under 128 MiB"
    assert partition_bits(1 << 40) == 14
    assert partition_bits((1 << 40) + 1) == 11, "above 1 TiB they are under 1 GiB"
    assert partition_bits(1000, 100) == 4


def test_more_partitions_than_buckets(tmp_path: Path) -> None:
    """Text that compresses a hundredfold: the buckets, estimated from the bytes on disk, are too few."""
    lines = [{"text": f"{number} " + "again and again " * 500} for number in range(200)]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(data))
    with patch.object(slices, "FILE_OVERHEAD", 0):
        result = normalize(tmp_path, tmp_path / "in.jsonl.gz", partition_bytes=50_000)
    assert len(result.manifest.partitions) == 64
    assert {index.split("/")[-1] for r in result.results for index in r.details.get("runs", ())}
    check_contract(result)


def test_of_equal_texts_the_first_by_position_stays(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_lines(source / "b.jsonl", {"id": "b1", "text": "same"}, {"id": "b2", "text": "other"})
    write_lines(source / "a.jsonl", {"id": "a1", "text": "alone"}, {"id": "a2", "text": "same"}, {"text": "same"})
    result = normalize(tmp_path, source)
    check_contract(result)
    assert {row["text"]: row["source_id"] for row in result.rows()} == {"alone": "a1", "same": "a2", "other": "b2"}
    same = xxhash.xxh3_128_hexdigest(b"same")
    assert result.duplicates() == [
        {"id": same, "source_id": None, "kept_source_id": "a2"},
        {"id": same, "source_id": "b1", "kept_source_id": "a2"},
    ]
    assert result["duplicates"] == 2


def test_normalizing_again_changes_no_document(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"id": f"d{n}", "text": f"text {n % 40}", "n": n} for n in range(50)))
    once = normalize(tmp_path / "once", tmp_path / "in.jsonl")
    again = normalize(tmp_path / "again", f"{once.directory}/part-*.parquet")
    assert again.rows() == once.rows()
    assert again.files().keys() == {part.path for part in again.manifest.partitions}, "no duplicates are left"


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


def test_columns_under_our_names_give_way() -> None:
    union = pa.schema([("id", pa.string()), ("url", pa.string()), ("text", pa.int64()), ("upstream_text", pa.int8())])
    schema, columns = output_schema(union, Config(text="body", id="url"))
    named = {entry.name: entry.upstream for entry in columns}
    assert schema.names == [
        "id",
        "text",
        "source",
        "source_id",
        "upstream_id",
        "upstream_upstream_text",
        "upstream_text",
    ]
    assert named["source_id"] == "url" and named["upstream_id"] == "id" and named["upstream_upstream_text"] == "text"


def test_struct_against_number_is_an_error_that_names_both_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", {"text": "a", "meta": {"x": 1}})
    write_lines(tmp_path / "in" / "b.jsonl", {"text": "b", "meta": 5})
    with pytest.raises(ColumnError, match=r"'meta'.*a\.jsonl.*b\.jsonl.*drop = \['meta'\]"):
        normalize(tmp_path / "one", tmp_path / "in")
    result = normalize(tmp_path / "two", tmp_path / "in", drop=["meta"])
    assert {row["text"] for row in result.rows()} == {"a", "b"}
    assert "meta" not in result.table().schema.names


def test_where_sees_upstream_columns_in_order(tmp_path: Path) -> None:
    records = [{"text": f"t{n}", "n": n, "lang": "de" if n % 2 else None, "m": {"k": n}} for n in range(20)]
    records += [{"text": "no columns at all"}]
    write_lines(tmp_path / "in.jsonl", *records)
    result = normalize(tmp_path, tmp_path / "in.jsonl", where="lang = 'de' AND n > 5 AND m.k < 15")
    assert {row["text"] for row in result.rows()} == {f"t{n}" for n in (7, 9, 11, 13)}
    assert result["where_dropped"] == 17
    check_contract(result)


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("lagn = 'de'", ColumnError, "'lagn'; did you mean 'lang'"),
        ("lang = = 'de'", RecipeError, "not a SQL predicate"),
        ("nothing(lang)", RecipeError, "nothing"),
        ("cast(text as integer) > 1", RecipeError, r"in\.jsonl: ConversionException$"),
    ],
)
def test_a_predicate_that_cannot_be(tmp_path: Path, where: str, error: type[Exception], words: str) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "secret", "lang": "de"})
    with pytest.raises(error, match=words) as caught:
        normalize(tmp_path, tmp_path / "in.jsonl", where=where)
    assert "secret" not in str(caught.value)


def test_a_sample_follows_from_ids(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"text": f"document {n}"} for n in range(2000)))
    everything = normalize(tmp_path / "all", tmp_path / "in.jsonl")
    some = normalize(tmp_path / "some", tmp_path / "in.jsonl", sample=0.25)
    check_contract(some)
    quarter = [row["id"] for row in everything.rows() if int(row["id"], 16) < 1 << 126]
    assert [row["id"] for row in some.rows()] == quarter
    assert some["sample_dropped"] == 2000 - len(quarter)


def longer(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform for the test below: drops a record, adds two, and makes the text from another column."""
    records = [record for record in batch.to_pylist() if record["n"] != 1]
    made = [{"text": f"{record['body']}!", "n": record["n"]} for record in records]
    return pa.RecordBatch.from_pylist([*made, *({"text": f"new {n}", "n": n} for n in range(2))])


def test_a_transform_makes_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", *({"body": f"b{n}", "n": n} for n in range(3)))
    result = normalize(tmp_path, tmp_path / "in.jsonl", transform=f"{__name__}:longer", transform_version=1)
    assert sorted(row["text"] for row in result.rows()) == ["b0!", "b2!", "new 0", "new 1"]
    assert result["transform_added"] == 1
    check_contract(result)


def test_missing_text_column_names_what_is_there(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"id": "1", "context": "x", "n": 1})
    with pytest.raises(
        ColumnError, match=r"in\.jsonl has no column 'content'; it has id, context, n \(did you mean 'co"
    ):
        normalize(tmp_path, tmp_path / "in.jsonl", text="content")


def test_nothing_left_is_an_error_with_the_counts(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": " "}, {"text": None}, {"text": ""})
    with pytest.raises(EmptyStageError, match=r"no document is left of 3 records \(3 blank\); is 'text' the right"):
        normalize(tmp_path, tmp_path / "in.jsonl")


def test_too_many_unusable_records_are_listed_by_place(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "good"}\nsecret\n{"text": 5}\n')
    with pytest.raises(PartialError, match=r"2 records cannot be used, and max_quarantined allows 1") as caught:
        normalize(tmp_path / "one", tmp_path / "in.jsonl", max_quarantined=1)
    assert "in.jsonl:17: not JSON" in str(caught.value) and "in.jsonl:24: 'text' holds" in str(caught.value)
    assert "secret" not in str(caught.value)
    result = normalize(tmp_path / "two", tmp_path / "in.jsonl", max_quarantined=2)
    assert result.quarantined() == [("in.jsonl", 17), ("in.jsonl", 24)]
    assert result.manifest.quarantine.records == 2
    assert result.manifest.identity != result.manifest.fingerprint
    check_contract(result)


@pytest.mark.parametrize("places", [range(25), range(0, 10_000, 400)], ids=["at the beginning", "everywhere"])
def test_a_share_is_one_of_all_records_wherever_the_unusable_ones_are(tmp_path: Path, places: range) -> None:
    lines = [b"broken" if number in places else b'{"text": "number %d"}' % number for number in range(10_000)]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    result = normalize(tmp_path / "enough", tmp_path / "in.jsonl", max_quarantined=0.01)
    assert (result["records_out"], result["quarantined"]) == (9975, 25)
    with pytest.raises(PartialError, match=r"25 records cannot be used, and max_quarantined allows 20;"):
        normalize(tmp_path / "too little", tmp_path / "in.jsonl", max_quarantined=0.002)


def test_a_bad_file_among_good_ones_is_within_a_share(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in range(20):
        line = b"broken\n" if name == 0 else b'{"text": "in file %d"}\n' % name
        (tmp_path / "in" / f"{name:02d}.jsonl").write_bytes(line * 500)
    assert normalize(tmp_path, tmp_path / "in", max_quarantined=0.05)["quarantined"] == 500


def test_a_bad_row_group_before_a_good_one_is_within_a_share(tmp_path: Path) -> None:
    texts = pa.table({"text": [f"number {number}" for number in range(4000)]})
    pq.write_table(texts, tmp_path / "in.parquet", row_group_size=2000, write_page_checksum=True)
    column = pq.ParquetFile(tmp_path / "in.parquet").metadata.row_group(0).column(0)
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    data[4 + column.total_compressed_size // 2] ^= 0xFF
    (tmp_path / "in.parquet").write_bytes(data)
    assert normalize(tmp_path, tmp_path / "in.parquet", max_quarantined=0.5)["quarantined"] == 2000


@pytest.mark.parametrize("line", [b'{"text": 5, "body": "%s"}\n', b'[{"text": "%s"}]\n'])
@pytest.mark.parametrize("limit", [0.5, 100, 0.0])
def test_where_nothing_can_be_used_only_the_beginning_is_read(tmp_path: Path, line: bytes, limit: float) -> None:
    """A mistake in the recipe is the same in every record: it must show at once, in a stream of any length."""
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress((line % (b"word " * 40)) * 200_000, 1))  # 46 MB
    read = []

    def counted(context: TaskContext, files: Any, positions: np.ndarray, alone: Any) -> Any:
        read.append(int(positions[-1]))
        return records(context, files, positions, alone)

    records = TaskContext.records
    with patch.object(TaskContext, "records", counted), pytest.raises(PartialError, match=r"(more than|first) [0-9]+"):
        normalize(tmp_path, tmp_path / "in.jsonl.gz", max_quarantined=limit)
    assert max(read) < 9 << 20


def test_a_slice_of_long_documents_none_of_which_can_be_used_is_given_up(tmp_path: Path) -> None:
    """Or a mistake in the recipe would show only when all slices were read."""
    (tmp_path / "in.jsonl").write_bytes((b'{"text": 5, "body": "%s"}\n' % (b"word " * 40_000)) * 200)  # 40 MB
    with pytest.raises(PartialError, match=r"200 of the first 200 records cannot be used, and max_quarantined .* 0\.5"):
        normalize(tmp_path, tmp_path / "in.jsonl", max_quarantined=0.5)


def test_text_rules_are_applied_and_counted(tmp_path: Path) -> None:
    lines = [
        b'{"text": "a\\u0000b"}',
        b'{"text": "one' + b" " * 200 + b'two"}',
        b'{"text": "caf\xe9"}',
        b'{"text": "\\ud800"}',
        '{"text": "\u2003\u00a0"}'.encode(),
        b'{"text": "plain"}',
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    result = normalize(tmp_path, tmp_path / "in.jsonl")
    assert {row["text"] for row in result.rows()} == {"ab", "one" + " " * 128 + "two", "caf\ufffd", "\ufffd", "plain"}
    counted = {name: result[name] for name in ("nul", "whitespace_runs", "invalid_utf8", "blank")}
    assert counted == {"nul": 1, "whitespace_runs": 1, "invalid_utf8": 2, "blank": 1}
    check_contract(result)


def test_same_bytes_in_any_order_of_tasks(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for number in range(6):
        records = [{"id": f"{number}-{n}", "text": f"text {n * number % 70}", "n": n / 2} for n in range(60)]
        write_lines(source / f"{number}.jsonl", *records, {"text": f"only {number}", f"column {number}": number})
    with patch.object(slices, "SLICE_BYTES", 800), patch.object(slices, "FILE_OVERHEAD", 0):
        forward = normalize(tmp_path / "forward", source, partition_bytes=500)
        backward = normalize(tmp_path / "backward", source, backwards=True, partition_bytes=500)
        routed = [result for result in forward.results if "runs" in result.details]
    whole = normalize(tmp_path / "whole", source, partition_bytes=500)
    assert len(routed) > 20 and len(forward.manifest.partitions) >= 4
    assert forward.files() == backward.files() == whole.files(), "nor does it matter how the input was sliced"
    check_contract(forward)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_counts_of_real_text_do_not_depend_on_slices(tmp_path: Path, suffix: str) -> None:
    records = _records(need_data() / "text" / "tldr.parquet")[:3000]
    path = tmp_path / f"in{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=100)
    else:
        data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with patch.object(slices, "SLICE_BYTES", 40_000):
        result = normalize(tmp_path, path)
    slice_count = sum("runs" in task.details for task in result.results)
    assert slice_count == 1 if suffix.endswith("gz") else slice_count > 10
    assert Counter(row["text"] for row in result.rows()) == dict.fromkeys({record["text"] for record in records}, 1)
    check_contract(result)


def test_files_that_are_documents(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    (source / "a.md").write_text("# A\n")
    (source / "deep" / "b.py").write_bytes(b"\xef\xbb\xbfprint()\r\n")
    (source / "c.txt").write_bytes(b"caf\xe9")
    (source / "empty.txt").write_bytes(b"")
    (source / "d.txt.gz").write_bytes(gzip.compress(b"packed"))
    result = normalize(tmp_path, source)
    assert {row["source_id"]: row["text"] for row in result.rows()} == {
        "a.md": "# A\n", "deep/b.py": "print()\r\n", "c.txt": "caf\ufffd", "d.txt.gz": "packed",
    }  # fmt: skip
    assert result["blank"] == 1 and result["invalid_utf8"] == 1
    check_contract(result)


def test_an_unknown_extension_needs_a_word(tmp_path: Path) -> None:
    (tmp_path / "in.qqq").write_text("some text")
    with pytest.raises(UnreadableError, match=r"in\.qqq has an unknown format: .*set the source's format"):
        normalize(tmp_path / "one", tmp_path / "in.qqq")
    assert [row["text"] for row in normalize(tmp_path / "two", tmp_path / "in.qqq", format="text").rows()] == [
        "some text"
    ]


def test_documents_that_are_too_long_are_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", {"text": "short"}, {"text": "x" * 101}, {"text": "y" * 100})
    result = normalize(tmp_path, tmp_path / "in.jsonl", max_document_bytes=100, max_quarantined=1)
    assert sorted(len(row["text"]) for row in result.rows()) == [5, 100]
    assert result.quarantined() == [("in.jsonl", 18)]
    check_contract(result)


@pytest.mark.parametrize(
    "wrong", [{"sample": 0}, {"whitespace_run": 0}, {"transform": "no"}, {"format": "jsno"}, {"transform": "a:b"}]
)
def test_a_configuration_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        Config(**wrong)
