"""`datakit.diff` finds the documents that only one of two steps has, and agrees with `datakit.why` on the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.api import diff
from datakit.errors import UsageError
from datakit.pipeline.fate import Absent, Side
from tests.support.partitions import identity
from tests.support.small_shelf import prose, settle, step, write_lines


def reasons(side: Side) -> dict[tuple[str, str], int]:
    return {(one.source, one.reason): one.documents for one in side.absent}


def test_removals_by_dedup_are_the_reason(finished_copy: Path) -> None:
    root, recipe = finished_copy / "root", finished_copy / "shelf" / "shelf.toml"
    before = step(finished_copy, "root/shelf/consolidate-*")
    datakit.run(recipe, root, workers=1, settings=["dedup.threshold=0.97"], until="consolidate")
    found = diff(before, root / "shelf")
    assert (found.first.documents, found.in_both, found.second.documents) == (143, 143, 144)
    assert found.first.absent == ()
    assert found.second.absent == (Absent("novels", "fuzzy", 1, (identity(prose(5)),)),)
    assert datakit.why(before, id=identity(prose(5))).documents[0].stages[-1].outcome == "removed"


def test_changed_files_settings_and_sources_are_reasons(finished_copy: Path) -> None:
    root, recipe = finished_copy / "root", finished_copy / "shelf" / "shelf.toml"
    before = datakit.open_cache(str(root / "shelf")).directory
    write_lines(finished_copy / "shelf" / "novels" / "a.jsonl", [prose(n) for n in range(2, 120)])
    recipe.write_text(recipe.read_text().replace('"letters"\nurl', '"notes"\nurl').replace("[dedup]", ""))
    settle()
    datakit.run(recipe, root, workers=1, settings=["sources.novels.where='n < 100'"], until="consolidate")
    listed: list[tuple[str, str, str, list[str]]] = []
    found = diff(before, root / "shelf", listed=lambda *some: listed.append(some))
    assert reasons(found.first) == {("novels", "input"): 2, ("letters", "no-source"): 47}
    assert found.first.absent[0].differs == ("where", "raw files")
    counted = {(mark, source, reason): len(ids) for mark, source, reason, ids in listed}
    assert counted["-", "novels", "input"] == 2 and counted["+", "notes", "no-source"] == 50
    assert set(found.first.absent[0].examples) == {identity(prose(0)), identity(prose(1))}
    assert ("novels", "fuzzy") in reasons(found.second), "the first run removed one as a near duplicate"


def test_exact_copies_in_another_source_are_the_reason(finished: Path) -> None:
    normalized = step(finished, "root/sources/letters/normalize-*")
    found = diff(normalized, finished / "root" / "shelf")
    assert reasons(found.first) == {("letters", "exact"): 3}
    assert reasons(found.second) == {("novels", "no-source"): 96}
    assert set(found.first.absent[0].examples) == {identity(prose(n)) for n in (2, 3, 4)}


def test_same_step_has_no_differences(finished: Path) -> None:
    found = diff(finished / "root" / "shelf", step(finished, "root/shelf/tokenize-*"))
    assert (found.first.absent, found.second.absent, found.in_both) == ((), (), 143)


def test_step_without_documents_is_refused(finished: Path) -> None:
    with pytest.raises(UsageError, match="has no documents; give a step of one of the stages normalize, consolidate"):
        diff(step(finished, "root/shelf/dedup-*"), finished / "root" / "shelf")
