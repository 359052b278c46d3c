"""`why` and reports know the passages of every document that was searched, whether or not an edit uses the spans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import datakit
from datakit.lineage.graph import read_lineage
from datakit.report.subject import subject_of
from tests.support.partitions import identity
from tests.support.small_shelf import prose

SHARED = "This line occurs in every document of the shelf."
FIRST, SECOND = (f"{SHARED}\n{prose(1)}{ending}" for ending in ("", " and one more"))
OTHER = f"{SHARED}\n{prose(2)}"
SEARCH = '[passages.lines]\nunit = "line"\nmin_bytes = 20\n'
EDIT = '[select.edits.repeated]\nspans = "passages.lines"\naction = "cut"\n'


def shelf(folder: Path, tables: str) -> str:
    texts = [FIRST, SECOND, OTHER, prose(3)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    head = 'name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n[dedup]\nthreshold = 0.7\n'
    (folder / "shelf.toml").write_text(head + tables + '[tokenize]\ntokenizer = "bytes"\n')
    datakit.run(folder / "shelf.toml", root=folder / "root", workers=1)
    return str(folder / "root" / "shelf")


def fates(dataset: str, text: str) -> dict[str, tuple[str, str]]:
    (document,) = datakit.why(dataset, id=identity(text)).documents
    return {stage.stage: (stage.outcome, stage.explanation) for stage in document.stages}


@pytest.mark.parametrize("tables", [SEARCH, SEARCH + EDIT])
def test_near_duplicate_that_select_keeps_has_its_passages(tmp_path: Path, tables: str) -> None:
    dataset = shelf(tmp_path, '[select]\ndrop = ["exact"]\n' + tables)
    found = {text: fates(dataset, text) for text in (FIRST, SECOND, OTHER)}
    near = [text for text in found if found[text]["dedup"][0] == "removed"]
    assert len(near) == 1
    assert all("passages" in one for one in found.values())
    marked = [one["passages"][0] for one in found.values()]
    assert sorted(marked) == ["marked", "marked", "unmarked"], "the first copy stays"


def test_near_duplicate_that_leaves_has_none(tmp_path: Path) -> None:
    dataset = shelf(tmp_path, SEARCH)
    found = [fates(dataset, text) for text in (FIRST, SECOND)]
    assert [one["dedup"][0] == "removed" for one in found].count(True) == 1
    assert all(("passages" in one) == (one["dedup"][0] != "removed") for one in found)


def test_search_that_no_edit_uses_is_in_reports_and_lineage_and_not_among_other_steps(tmp_path: Path) -> None:
    dataset = shelf(tmp_path, SEARCH)
    assert "passages" in [step.stage for step in subject_of(dataset).steps]
    assert "passages" in [step.stage for step in read_lineage(dataset).steps]
    assert datakit.why(dataset, id=identity(OTHER)).others == ()
