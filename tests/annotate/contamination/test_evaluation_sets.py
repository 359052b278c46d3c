"""Items come from every format in the same way, are numbered by file and row, and errors quote no text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from datakit.annotate.contamination.evaluation_sets import EvaluationSet, list_files, read_passages
from datakit.errors import ChangedInputError, ColumnError, NoInputError, UnreadableError

ROWS: list[dict[str, Any]] = [
    {"question": "first q", "choices": ["a", "b"], "id": 1},
    {"question": None, "choices": [], "id": 2},
    {"question": "third q", "choices": None, "id": 3},
    {"question": "fourth ü", "choices": ["c"], "id": 4},
]
EXPECTED = [(0, "first q"), (0, "a"), (0, "b"), (2, "third q"), (3, "fourth ü"), (3, "c")]


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def arrow(path: Path, table: pa.Table, *, stream: bool) -> None:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


WRITERS: dict[str, Callable[[Path], object]] = {
    "plain.jsonl": lambda path: path.write_bytes(json_lines(ROWS).replace(b"\n", b"\n\n")),
    "packed.jsonl.gz": lambda path: path.write_bytes(gzip.compress(json_lines(ROWS))),
    "packed.jsonl.zst": lambda path: path.write_bytes(
        zstandard.compress(json_lines(ROWS[:2])) + zstandard.compress(json_lines(ROWS[2:]))
    ),
    "table.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=3),
    "file.arrow": lambda path: arrow(path, pa.Table.from_pylist(ROWS), stream=False),
    "stream.arrow": lambda path: arrow(path, pa.Table.from_pylist(ROWS), stream=True),
}


def passages_of(*sets: EvaluationSet) -> tuple[list[tuple[int, str]], tuple[int, ...]]:
    read = read_passages(sets, [list_files(one) for one in sets])
    return list(zip(read.items.to_pylist(), read.texts.to_pylist(), strict=True)), read.set_starts


NESTED: list[dict[str, Any]] = [
    {"question": "q0", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answer": {"value": "v0"}},
    {"question": "q1", "choices": None, "answer": {"value": None}},
    {"question": "q2", "choices": {"text": [], "label": []}, "answer": None},
    {"question": "q3", "choices": {"text": ["c"], "label": ["A"]}, "answer": {"value": "v3"}},
]
LISTS: list[dict[str, Any]] = [
    {"turns": [{"said": "one", "by": ["x", "y"]}, {"said": None, "by": []}]},
    {"turns": []},
    {"turns": None},
    {"turns": [{"said": "two", "by": ["z"]}]},
]


def write(path: Path, rows: list[dict[str, Any]]) -> EvaluationSet:
    if path.suffix == ".jsonl":
        path.write_bytes(json_lines(rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return EvaluationSet("one", str(path))


@pytest.mark.parametrize("name", ["lines.jsonl", "table.parquet"])
def test_fields_of_structs_and_of_lists_of_structs_are_columns(tmp_path: Path, name: str) -> None:
    chosen = replace(write(tmp_path / name, NESTED), columns=("question", "choices.text", "answer.value"))
    found, starts = passages_of(chosen)
    expected = [(0, "q0"), (0, "a"), (0, "b"), (0, "v0"), (1, "q1"), (2, "q2"), (3, "q3"), (3, "c"), (3, "v3")]
    assert (found, starts) == (expected, (0, 4))
    listed = replace(write(tmp_path / f"lists-{name}", LISTS), columns=("turns.said", "turns.by"))
    assert passages_of(listed)[0] == [(0, "one"), (0, "x"), (0, "y"), (3, "two"), (3, "z")]


@pytest.mark.parametrize("name", ["lines.jsonl", "table.parquet"])
def test_missing_field_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    for column in ("choices.texts", "question.text", "choice.text"):
        with pytest.raises(ColumnError, match=f"has no column '{column}'"):
            passages_of(replace(write(tmp_path / name, NESTED), columns=(column,)))


def test_column_whose_name_has_a_dot_comes_before_a_field(tmp_path: Path) -> None:
    chosen = write(tmp_path / "a.jsonl", [{"a.b": "column", "a": {"b": "field"}}])
    assert passages_of(replace(chosen, columns=("a.b",)))[0] == [(0, "column")]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_passages(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    chosen = EvaluationSet("one", str(tmp_path / name), ("question", "choices"))
    assert passages_of(chosen) == (EXPECTED, (0, 4))


def test_items_are_numbered_by_path_and_through_the_sets(tmp_path: Path) -> None:
    for name, texts in (("b", ["three"]), ("a", ["one", "two"]), ("c", ["four"])):
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines([{"text": text} for text in texts]))
    both = EvaluationSet("both", str(tmp_path / "[ab].jsonl"), ("text",))
    other = EvaluationSet("other", str(tmp_path / "c.jsonl"), ("text",))
    assert passages_of(both, other) == ([(0, "one"), (1, "two"), (2, "three"), (3, "four")], (0, 3, 4))


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoInputError, match="no file matches"):
        list_files(EvaluationSet("one", str(tmp_path / "*.jsonl")))
    with pytest.raises(UnreadableError, match="is not a file"):
        list_files(EvaluationSet("one", str(tmp_path)))


def test_a_missing_column_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    WRITERS["plain.jsonl"](tmp_path / "plain.jsonl")
    with pytest.raises(ColumnError, match="did you mean 'question'"):
        passages_of(EvaluationSet("one", str(tmp_path / "plain.jsonl"), ("questions",)))


@pytest.mark.parametrize("name", WRITERS)
def test_columns_without_texts_are_refused(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with pytest.raises(ColumnError, match="column 'id' holds neither"):
        passages_of(EvaluationSet("one", str(tmp_path / name), ("question", "id")))


def test_a_column_that_is_always_null_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(json_lines([{"question": None}]))
    with pytest.raises(ColumnError, match="holds no text"):
        passages_of(EvaluationSet("one", str(tmp_path / "one.jsonl")))


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_files_are_refused_without_quoting_them(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[:-9] if name != "plain.jsonl" else b'{"question": "secret\n')
    with pytest.raises(UnreadableError) as caught:
        passages_of(EvaluationSet("one", str(path), ("question", "choices")))
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("question\n")
    with pytest.raises(UnreadableError, match="unknown format"):
        passages_of(EvaluationSet("one", str(tmp_path / "items.csv")))


def test_a_file_that_changed_since_it_was_hashed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(json_lines(ROWS))
    chosen = EvaluationSet("one", str(path))
    listed = list_files(chosen)
    path.write_bytes(json_lines(ROWS[::-1]))
    with pytest.raises(ChangedInputError, match="changed while it was read"):
        read_passages([chosen], [listed])
