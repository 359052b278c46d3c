"""Scores that annotators wrote choose which duplicate stays, whatever the partitions and the row groups."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.dedup import stage
from datakit.dedup.score_tables import ScoreTable
from datakit.engine.task import Step, StepInput
from datakit.errors import ColumnError
from datakit.storage.ids import ids_from_arrow
from datakit.storage.parquet import ShardWriter
from tests.support.annotate.rules_inputs import SCHEMAS, annotated
from tests.support.dedup.dedup_inputs import dedup_step, id_of, run_step, write_source
from tests.support.dedup.made_up_texts import edited, text_of

TEXTS = [text_of(5), edited(text_of(5), 1) + " and some more", edited(text_of(5), 1) + " and still some more words"]


def kept(root: Path, scores: Mapping[str, float | None], prefer: tuple[str, ...], one_source: bool) -> set[str]:
    """The ids of the documents that stay in place of others."""
    parts = [TEXTS] if one_source else [[text] for text in TEXTS]
    sources = [write_source(root, f"s{number}", texts) for number, texts in enumerate(parts)]
    facts = {text: {"score": score, "words": 1} for text, score in scores.items()}
    tables = [annotated(root / f"a-{entry.source}", entry, {"quality": facts}) for entry in sources]
    result = run_step(with_tables(root / "dedup", sources, tables, prefer))
    return {row["representative_id"] for row in result.attributes()}


def with_tables(root: Path, sources: list[StepInput], tables: list[StepInput], prefer: tuple[str, ...]) -> Step:
    made = dedup_step(root, sources, stage.Config(prefer=prefer, max_removal=1.0))
    return replace(made, inputs=(*made.inputs, *tables))


@pytest.mark.parametrize("one_source", [True, False])
def test_document_with_the_highest_score_of_an_annotator_stays(tmp_path: Path, one_source: bool) -> None:
    for number, (scores, stays) in enumerate(
        (
            ({TEXTS[0]: 0.2, TEXTS[1]: 0.9, TEXTS[2]: 0.1}, TEXTS[1]),
            ({TEXTS[0]: 0.0, TEXTS[2]: None}, TEXTS[0]),  # no row and null: no score
            ({TEXTS[0]: float("nan"), TEXTS[1]: -1.0}, TEXTS[1]),
            ({}, TEXTS[2]),  # the next key decides
            (dict.fromkeys(TEXTS, 0.5), TEXTS[2]),
        )
    ):
        found = kept(tmp_path / str(number), scores, ("score:quality.score", "longest"), one_source)
        assert found == {id_of(stays)}, number


def test_column_without_numbers_is_refused_before_documents_are_read(tmp_path: Path) -> None:
    source = write_source(tmp_path, "web", TEXTS)
    tables = [annotated(tmp_path / "a", source, {"quality": {}, "personal": {}})]
    for prefer, message in (
        ("score:quality.scroe", "has no such column; did you mean 'score'"),
        ("score:personal.spans", "personal.spans has type list"),
    ):
        with pytest.raises(ColumnError, match=message):
            run_step(with_tables(tmp_path / prefer, [source], tables, (prefer,)))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_scores_are_found_by_id(data: st.DataObject) -> None:
    names = sorted(
        data.draw(st.sets(st.sampled_from([f"{high:016x}{low:016x}" for high in range(4) for low in range(9)])))
    )
    listed = sorted(data.draw(st.sets(st.sampled_from(names)))) if names else []
    scores = {name: data.draw(st.none() | st.floats(-5, 5)) for name in listed}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(names)), max_size=4)))
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(f"{folder}/t.parquet", SCHEMAS["quality"]) as writer:
            rows = [{"id": name, "score": score, "words": 1} for name, score in scores.items()]
            writer.write(pa.Table.from_pylist(rows, SCHEMAS["quality"]))
        table, found = ScoreTable(f"{folder}/t.parquet", "score"), []
        for start, stop in zip([0, *cuts], [*cuts, len(names)], strict=True):
            ids = pa.chunked_array([pa.array(names[start:stop], pa.string())])
            found += table.of(*ids_from_arrow(ids)).tolist() if stop > start else []
    expected = [-np.inf if scores.get(name) is None else scores[name] for name in names]
    assert found == expected
