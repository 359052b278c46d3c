"""Documents and attributes in Dolma's form: joined by id, or an error that names the file."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.errors import ColumnError, UnreadableError
from datakit.normalize.readers import line_chunks
from tests.support.data import need_data
from tests.support.normalize.sources import Normalized, normalize, write_lines

DOCUMENTS = [{"id": f"d{number}", "text": f"document {number}", "n": number} for number in range(6)]


def entry(number: int, **attributes: Any) -> dict[str, Any]:
    return {"id": f"d{number}", "attributes": attributes}


def write(folder: Path, attributes: list[dict[str, Any]], documents: list[Any] = DOCUMENTS) -> Path:
    write_lines(folder / "documents" / "a.jsonl", *documents)
    write_lines(folder / "attributes" / "quality" / "a.jsonl", *attributes)
    return folder


def run(tmp_path: Path, folder: Path, **config: Any) -> Normalized:
    return normalize(tmp_path / "out", folder, format="dolma", **config)


def test_real_documents_get_their_attributes(tmp_path: Path) -> None:
    provided = need_data() / "dolma-tests" / "provided"
    for name in ("documents", "attributes"):
        shutil.copytree(provided / name, tmp_path / "in" / name)
    result = run(tmp_path, tmp_path / "in")
    expected: dict[str, dict[str, Any]] = {}
    for path in sorted((provided / "attributes").rglob("*.json.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            value = json.loads(line)
            expected.setdefault(value["id"], {}).update(value["attributes"])
    texts = {value["id"]: value["text"] for value in _lines(provided / "documents" / "000.json.gz")}
    found = {row["source_id"]: row for row in result.rows()}
    assert len(found) == len(texts) == 10
    for identity, row in found.items():
        assert row["text"] == texts[identity]
        for name, value in expected[identity].items():
            if not isinstance(value, dict):
                assert row[name] == value
            else:
                assert {key: one for key, one in row[name].items() if one is not None} == value
    assert {name for row in expected.values() for name in row} <= set(result.table().column_names)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


@settings(max_examples=30, deadline=None)
@given(
    scores=st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=12),
    bad=st.sets(st.integers(0, 11)), chunk=st.integers(1, 300),
)  # fmt: skip
def test_each_document_gets_its_own_entry(
    tmp_path_factory: pytest.TempPathFactory, scores: list[float | None], bad: set[int], chunk: int
) -> None:
    """Also beside documents that are quarantined, whatever the chunks."""
    folder = tmp_path_factory.mktemp("dolma")
    documents = [
        {"id": f"d{number}", "text": ["no string"] if number in bad else f"document {number}"}
        for number in range(len(scores))
    ]
    write(
        folder / "in",
        [entry(number, **({} if one is None else {"score": one})) for number, one in enumerate(scores)],
        documents,
    )
    expected = {f"d{number}": one for number, one in enumerate(scores) if number not in bad}
    if not expected:
        return
    with patch.object(line_chunks, "CHUNK_BYTES", chunk):
        result = run(folder, folder / "in", max_quarantined=20)
    assert {row["source_id"]: row.get("score") for row in result.rows()} == expected


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ([entry(n) for n in (0, 2, 1, 3, 4, 5)], "the entry at byte 31 has another id than the document at byte"),
        ([entry(n) for n in range(5)], "quality/a.jsonl ends before the document at byte"),
        ([entry(n) for n in range(7)], "the entry at byte 186 belongs to no document"),
        ([{"id": "d0"}], "at byte 0, a line without an `id` and an object `attributes`"),
        ([[1]], "at byte 0, a line without an `id`"),
    ],
)
def test_mismatch_is_an_error_with_its_place(tmp_path: Path, attributes: list[Any], words: str) -> None:
    with pytest.raises(UnreadableError, match=f"attributes/quality/a.jsonl.*{words}|{words}"):
        run(tmp_path, write(tmp_path / "in", attributes))


def test_damaged_attributes_are_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [])
    (folder / "attributes" / "quality" / "a.jsonl").write_text('{"id": "d0", "attr')
    with pytest.raises(UnreadableError, match=r"quality/a.jsonl: at byte 0, a line that is not JSON"):
        run(tmp_path, folder)


def test_column_of_two_origins_is_an_error_unless_it_is_dropped(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [entry(number, n=0.5, more=True) for number in range(6)])
    with pytest.raises(ColumnError, match=r"documents/a.jsonl and attributes/quality/a.jsonl both have a column 'n'"):
        run(tmp_path, folder)
    result = normalize(tmp_path / "two", folder, format="dolma", drop=["n"])
    assert [row["more"] for row in result.rows()] == [True] * 6


def test_missing_and_additional_files_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [entry(number) for number in range(6)])
    write_lines(folder / "documents" / "b.jsonl", *DOCUMENTS)
    write_lines(folder / "attributes" / "quality" / "c.jsonl", *DOCUMENTS)
    with pytest.raises(UnreadableError) as caught:
        run(tmp_path, folder)
    assert "documents/b.jsonl has no attributes of quality" in str(caught.value)
    assert "attributes/quality/c.jsonl belongs to no documents" in str(caught.value)


def test_file_outside_the_two_folders_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [entry(number) for number in range(6)])
    write_lines(folder / "other" / "b.jsonl", *DOCUMENTS)
    with pytest.raises(UnreadableError, match=r"other/b.jsonl is neither below documents/"):
        run(tmp_path, folder)


def test_documents_without_attributes_and_several_trees_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "v1", [entry(number, score=0.5) for number in range(6)])
    write_lines(folder / "v2" / "documents" / "a.jsonl", {"id": "x", "text": "alone"})
    assert {row["source_id"]: row["score"] for row in run(tmp_path, folder).rows()} == {
        **{f"d{number}": 0.5 for number in range(6)}, "x": None,
    }  # fmt: skip


def test_attributes_decide_which_documents_stay(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", [entry(number, score=number / 10) for number in range(6)])
    result = run(tmp_path, folder, where="score >= 0.3")
    assert sorted(row["source_id"] for row in result.rows()) == ["d3", "d4", "d5"]
