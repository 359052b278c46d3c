"""The dataset card shows counts and lineage."""

from __future__ import annotations

from pathlib import Path

from datakit.consolidate.card import SourceCounts, render
from datakit.consolidate.stage import NAME, plan
from tests.support.caches import clean
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import identity, step, words


def test_card_shows_counts_and_lineage(tmp_path: Path) -> None:
    texts = words(1, 30)
    inputs = clean(tmp_path / "n", {"novels": texts}, leaving={"novels": {identity(texts[0]): ["fuzzy"]}})
    run_plan_inline(plan(step(tmp_path / "out", NAME, inputs)), str(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith('---\npretty_name: "test"\n')
    assert 'path: "data/novels/part-*.parquet"' in card
    assert "| novels | 1 | 30 | 1 | 29 |" in card
    assert "left out" not in card
    assert "| normalize | novels | " in card and "`../n/novels` |" in card


def test_card_says_why_normalize_left_records_out() -> None:
    """Each reason that occurs has a column: texts that are missing and blank texts are counted apart."""
    counters = {"normalize/records_in": 12, "normalize/missing": 2, "normalize/blank": 3, "normalize/duplicates": 0}
    other = SourceCounts("b", 1, 1, {}, 1, 9, {"normalize/records_in": 1})
    sources = [SourceCounts("a", 1, 7, {}, 7, 70, counters), other]
    card = render("test", "0", sources, [], [])
    lines = ["| source | read | no text | blank |", "|---|---:|---:|---:|", "| a | 12 | 2 | 3 |", "| b | 1 | 0 | 0 |"]
    assert "\n".join(lines) in card
