"""`why --source-id` reads the files again to say why a record did not become a document."""

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

import datakit
from datakit.errors import InputError
from datakit.pipeline.fate import absent

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


def test_counts_are_given_for_files_too_large_to_read_again(dataset: Path) -> None:
    with patch.object(absent, "READ_AGAIN", 100):
        assert "forum: its files were not read again. Records left out: 1 without" in answer(dataset, "blank")


def test_id_far_inside_a_quarantined_line_is_not_found(dataset: Path) -> None:
    with patch.object(absent, "LINE_BYTES", 5):
        assert "forum: no record of its files has this id. Records left out: " in answer(dataset, "broken")


def test_counts_are_given_when_the_files_are_gone(dataset: Path) -> None:
    file = dataset.parents[1] / "forum.jsonl"
    file.rename(file.with_suffix(".away"))
    try:
        assert "forum: its files were not read again. Records left out: 1 without" in answer(dataset, "blank")
    finally:
        file.with_suffix(".away").rename(file)


def test_reasons_are_found_for_texts_that_are_made(tmp_path: Path) -> None:
    titles = ["null", '" "', '"a"', '"b"', '"c"', '"d"']
    lines = [f'{{"id": "r{number}", "t": {{"x": {title}}}}}\n' for number, title in enumerate(titles)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    (tmp_path / "r.toml").write_text(
        'name = "made"\n[[sources]]\nname = "forum"\nurl = "in.jsonl"\ntext = { columns = ["t.x"] }\nlimit = 2\n'
    )
    datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=1, until="consolidate")
    reasons = {
        "r0": "it has no text in the column 't.x'",
        "r1": "its text is blank",
        "r5": "it comes after the first 2 documents (`limit`)",
    }
    for source_id, reason in reasons.items():
        assert reason in answer(tmp_path / "root" / "made", source_id)
