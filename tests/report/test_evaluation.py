"""The section about evaluation sets has the counts of each source, and is absent without evaluation sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datakit.api import run
from datakit.report import evaluation
from datakit.report.evaluation import evaluation_section
from datakit.report.page import page_of, render
from datakit.report.subject import subject_of

ITEM = "which of these many evaluation questions would a careful reader recognize again at once"


def write(folder: Path, annotate: str) -> Path:
    """Write a recipe with two sources; one of their five documents contains an item."""
    for name, texts in {"clean": ["one", "two"], "leaky": ["three", f"before {ITEM}", "four"]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name, item in {"mine": ITEM, "other": ITEM[::-1]}.items():
        (folder / f"{name}-set.jsonl").write_text(json.dumps({"question": item}) + "\n")
    with (folder / "mine-set.jsonl").open("a") as file:  # an item that is too short, and one without words
        file.write('{"question": "too short to be found"}\n{"question": "?"}\n')
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"\n' for name in ("clean", "leaky"))
    (folder / "shelf.toml").write_text(f'name = "shelf"\n{sources}{annotate}\n[tokenize]\ntokenizer = "bytes"\n')
    return folder / "shelf.toml"


SETS = "".join(f'[annotate.contamination.sets.{name}]\npath = "{name}-set.jsonl"\n' for name in ("other", "mine"))


def test_table_has_the_documents_of_each_set_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(write(tmp_path, SETS), tmp_path / "root", workers=1)
    subject = subject_of(str(tmp_path / "root" / "shelf"))
    (section,) = evaluation_section(subject)
    (figure,) = section.figures
    assert list(figure.table.rows) == [
        ("mine", "clean", 2, 0, 0.0, 3, 2), ("mine", "leaky", 3, 1, 1 / 3, 3, 2),
        ("other", "clean", 2, 0, 0.0, 1, 0), ("other", "leaky", 3, 0, 0.0, 1, 0),
    ]  # fmt: skip
    assert figure.chart is not None and figure.chart.data["series"][0]["values"] == [1, 0]
    assert section.title in render(page_of(subject, False))
    monkeypatch.setattr(evaluation, "MOST_ROWS", 3)
    (section,) = evaluation_section(subject)
    assert (len(section.figures[0].table.rows), section.figures[0].table.more) == (3, "The first 3 of 4 rows.")


def test_dataset_without_evaluation_sets_has_no_such_section(tmp_path: Path) -> None:
    run(write(tmp_path, "[annotate.script]\n"), tmp_path / "root", workers=1)
    assert list(evaluation_section(subject_of(str(tmp_path / "root" / "shelf")))) == []
