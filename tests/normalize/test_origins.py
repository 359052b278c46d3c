"""Origins lead from every document, kept or duplicate, back to the record it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as some

from datakit.normalize.readers import slices
from tests.support.normalize.sources import Normalized, check_contract, normalize, write_lines


def places(result: Normalized) -> list[tuple[str, str, int, bool]]:
    """(id, path, position, kept) of each row."""
    return [(row["id"], row["path"], row["position"], row["kept"]) for row in result.origins()]


def identity(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


@settings(max_examples=40)
@given(numbers=some.lists(some.lists(some.integers(0, 9), max_size=12), min_size=1, max_size=4))
def test_each_row_leads_to_its_record(tmp_path_factory: pytest.TempPathFactory, numbers: list[list[int]]) -> None:
    """Including blank records, which are left out; the first record with a text is the one that is kept."""
    folder = tmp_path_factory.mktemp("origins")
    texts = [["" if n == 9 else f"text {n} {'é' * n}" for n in file] for file in [[1], *numbers]]
    for number, file in enumerate(texts):
        write_lines(folder / "in" / f"{number}.jsonl", *({"text": text} for text in file))
    result = normalize(folder, folder / "in", partition_bytes=40)
    check_contract(result)
    assert len({row["id"] for row in result.origins()}) == len(result.rows())
    seen = set()
    for row in sorted(result.origins(), key=lambda row: (row["file"], row["position"])):
        data = (folder / "in" / row["path"]).read_bytes()[row["position"] :]
        text = json.loads(data.partition(b"\n")[0])["text"]
        assert (row["id"], row["kept"]) == (identity(text), text not in seen)
        seen.add(text)
    for number, file in enumerate(texts):
        used = [text.encode() for text in file if text]
        assert result.file_counts()[f"{number}.jsonl"] == (len(file), len(used), sum(map(len, used)))


def test_positions_are_rows_in_parquet_and_counts_add_up_over_slices(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"text": [f"text {n} " + "x" * 500 for n in range(60)]})
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=10)
    write_lines(tmp_path / "in" / "b.jsonl", *({"text": f"line {n}"} for n in range(3)))
    with patch.object(slices, "SLICE_BYTES", 1000):
        result = normalize(tmp_path, tmp_path / "in", where="text not like '%text 7%'")
    check_contract(result)
    expected = {identity(text): row for row, text in enumerate(table["text"].to_pylist()) if row != 7}
    assert {row["id"]: row["position"] for row in result.origins() if row["path"] == "a.parquet"} == expected
    sizes = [sum(len(row["text"]) for row in result.rows() if row["text"].startswith(start)) for start in ("te", "li")]
    assert result.file_counts() == {"a.parquet": (60, 59, sizes[0]), "b.jsonl": (3, 3, sizes[1])}


def test_files_of_one_document_keep_their_names_in_a_transform(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.txt").write_text(f"text {name}")
    result = normalize(tmp_path, tmp_path / "in", transform=f"{__name__}:louder", transform_version=1)
    assert {row["id"]: row["path"] for row in result.origins()} == {
        identity(f"TEXT {name.upper()}"): f"{name}.txt" for name in ("a", "b", "c")
    }


def test_quarantine_names_the_file_of_a_transformed_record(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "in" / f"{name}.txt").write_text(name)
    settings = {"transform": f"{__name__}:longer_b", "transform_version": 1, "max_document_bytes": 50}
    result = normalize(tmp_path, tmp_path / "in", max_quarantined=1, **settings)
    assert result.quarantined() == [("b.txt", 0)]


def longer_b(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that makes a text too long."""
    return pa.RecordBatch.from_pylist(
        [{"text": row["text"].decode().replace("b", "b" * 99)} for row in batch.to_pylist()]
    )


def louder(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that changes each record."""
    return pa.RecordBatch.from_pylist([{**row, "text": row["text"].decode().upper()} for row in batch.to_pylist()])


def only_even(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that drops records."""
    return batch.filter(pa.array([len(row["text"]) % 2 == 0 for row in batch.to_pylist()]))


@pytest.mark.parametrize(("suffix", "path"), [("jsonl", "in.jsonl"), ("txt", None)])
def test_positions_are_unknown_where_a_transform_drops_records(tmp_path: Path, suffix: str, path: Any) -> None:
    """The file is known unless the transform saw several files at once; what is not known is never guessed."""
    if suffix == "jsonl":
        write_lines(tmp_path / "in" / "in.jsonl", {"text": "odd"}, {"text": "even"})
    else:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.txt").write_text("odd")
        (tmp_path / "in" / "b.txt").write_text("even")
    result = normalize(tmp_path, tmp_path / "in", transform=f"{__name__}:only_even", transform_version=1)
    check_contract(result)
    assert places(result) == [(identity("even"), path, None, True)]


def test_bytes_of_origins_do_not_depend_on_task_order(tmp_path: Path) -> None:
    for name in "abc":
        write_lines(tmp_path / "in" / f"{name}.jsonl", *({"text": f"text {n % 150}"} for n in range(200)))
    with patch.object(slices, "SLICE_BYTES", 5000):
        one = normalize(tmp_path / "one", tmp_path / "in", partition_bytes=300)
        two = normalize(tmp_path / "two", tmp_path / "in", partition_bytes=300, backwards=True)
    assert any(path.startswith("origins/") for path in one.files())
    assert one.files() == two.files()
