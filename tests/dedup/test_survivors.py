"""The recipe chooses which document of several stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.dedup import stage
from datakit.errors import ColumnError
from tests.support.dedup.dedup_inputs import deduplicate, id_of, write_source
from tests.support.dedup.made_up_texts import edited, text_of


def test_recipe_chooses_which_document_stays(tmp_path: Path) -> None:
    base = text_of(5)
    short, long = base, edited(base, 1) + " and some more"
    scores = {short: 0.9, long: None}
    sources = [
        write_source(tmp_path, "one", [long], scores=[scores[long]]),
        write_source(tmp_path, "two", [short], scores=[scores[short]]),
    ]
    for prefer, stays in (
        (("longest",), long),
        (("score:score", "longest"), short),
        (("source",), long),
        ((), min(short, long, key=id_of)),
    ):
        config = stage.Config(prefer=prefer, max_removal=1.0)
        result = deduplicate(tmp_path / "-".join(("run", *prefer)), sources, config)
        (row,) = result.attributes()
        assert row["representative_id"] == id_of(stays), prefer
    swapped = deduplicate(tmp_path / "swapped", sources[::-1], stage.Config(prefer=("source",), max_removal=1.0))
    assert swapped.attributes()[0]["representative_id"] == id_of(short)


def test_missing_or_non_numeric_score_is_rejected(tmp_path: Path) -> None:
    source = write_source(tmp_path, "web", [text_of(1)], scores=[1.0])
    with pytest.raises(ColumnError, match=r"'web' has no column 'scroe'.*did you mean 'score'"):
        deduplicate(tmp_path, [source], stage.Config(prefer=("score:scroe",)))
    with pytest.raises(ColumnError, match="'web': column 'id' has type string"):
        deduplicate(tmp_path, [source], stage.Config(prefer=("score:id",)))
