"""`why --source-id` reads the files again to say why a record did not become a document."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import datakit
from datakit.errors import InputError

LINES = [
    '{"id": "kept", "text": "a first text", "language": "en"}',
    '{"id": "blank", "text": "   ", "language": "en"}',
    '{"id": "none", "language": "en"}',
    '{"id": "object", "text": {"a": 1}, "language": "en"}',
    '{"id": "french", "text": "un texte", "language": "fr"}',
    '{"id": "broken", "text": ',
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with two sources, of which the second has no ids."""
    folder = tmp_path_factory.mktemp("absent")
    (folder / "forum.jsonl").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "web.csv").write_text("text\nanother text\n")
    (folder / "r.toml").write_text(
        'name = "made"\n[[sources]]\nname = "forum"\nurl = "forum.jsonl"\nwhere = "language = \'en\'"\n'
        '[[sources]]\nname = "web"\nurl = "web.csv"\n[normalize]\nmax_quarantined = 9\n'
    )
    datakit.run(folder / "r.toml", folder / "root", workers=1, until="consolidate")
    return folder / "root" / "made"


def answer(dataset: Path, source_id: str) -> str:
    with pytest.raises(InputError) as caught:
        datakit.why(dataset, source_id=source_id)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source_id", "reason"),
    [
        ("blank", "its text is blank"),
        ("none", "it has no text in the column 'text'"),
        ("object", "quarantined: 'text' holds a JSON object, not a string (line 4)"),
        ("broken", "quarantined: not JSON"),
        ("french", "`where` excluded it (language = 'en')"),
    ],
)
def test_reason_and_place_of_a_record_are_named(dataset: Path, source_id: str, reason: str) -> None:
    said = answer(dataset, source_id)
    number = next(number for number, line in enumerate(LINES) if f'"{source_id}"' in line)
    position = sum(len(line) + 1 for line in LINES[:number])
    assert f"  forum: forum.jsonl, byte {position}: {reason}" in said
    command = said.partition("to see it: ")[2].splitlines()[0]
    assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout[:-1] == LINES[number]


def test_unknown_id_is_said_to_be_in_no_file(dataset: Path) -> None:
    said = answer(dataset, "nobody")
    assert "forum: no record of its files has this id. Records left out: " in said
    assert "1 without a text, 1 blank, 1 by where, 2 quarantined (" in said


def test_source_without_ids_is_named(dataset: Path) -> None:
    assert "web: its documents have no source ids, because no record has the column 'id'" in answer(dataset, "nobody")


def test_counts_are_given_when_the_files_are_gone(dataset: Path) -> None:
    file = dataset.parents[1] / "forum.jsonl"
    file.rename(file.with_suffix(".away"))
    try:
        assert "forum: its files were not read again. Records left out: 1 without" in answer(dataset, "blank")
    finally:
        file.with_suffix(".away").rename(file)
