"""A sample holds matching documents only, and depends on neither the order nor the partitions of the documents."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from datakit.annotate.annotator import SPANS
from datakit.errors import NotFoundError, UsageError
from datakit.pipeline.attributes.columns import columns_of, find_column
from datakit.pipeline.attributes.sample import EXCERPT, Sampled, Wanted, sample, with_excerpts
from datakit.pipeline.attributes.tables import annotated
from tests.support.annotate.attribute_steps import write_step
from tests.support.partitions import identity

TEXTS = [f"text {number} {'x' * number * 10}" for number in range(60)]
SCORES = [None if number % 7 == 0 else number / 100 for number in range(60)]
SPAN_LISTS = [[{"start": 0, "stop": 1, "kind": kind}] * (number % 4) for number, kind in
              enumerate(["email", "phone"] * 30)]  # fmt: skip
TABLES = {
    "quality": {"score": pa.array(SCORES, pa.float32())},
    "language": {"label": pa.array(["de", None, "en"] * 20)},
    "personal": {"spans": pa.array(SPAN_LISTS, SPANS)},
}
BY_ID = {identity(text): number for number, text in enumerate(TEXTS)}


def drawn(place: str, column: str, wanted: Wanted) -> tuple[list[Sampled], int]:
    found = annotated(place)
    chosen = find_column(column, columns_of(found))
    return sample(found.select(lambda file: file.annotator == chosen.annotator), chosen, wanted)


def test_sample_holds_documents_between_the_bounds_in_order(tmp_path: Path) -> None:
    place = write_step(tmp_path, "s", TABLES, TEXTS, bits=2)
    found, matching = drawn(place, "quality", Wanted(5, between=(0.2, 0.4)))
    inside = [number for number, one in enumerate(SCORES) if one is not None and 0.2 <= one <= 0.4]
    assert matching == len(inside) and len(found) == 5
    assert {BY_ID[one.id] for one in found} <= set(inside)
    assert [one.value for one in found] == sorted(SCORES[BY_ID[one.id]] or 0 for one in found)
    everything, _ = drawn(place, "quality", Wanted(100, between=(0.2, 0.4)))
    assert [BY_ID[one.id] for one in everything] == inside, "bounds are included, also those that float32 rounds"


@pytest.mark.parametrize("column", ["quality", "language", "personal"])
def test_partitions_do_not_change_the_sample(tmp_path: Path, column: str) -> None:
    whole = drawn(write_step(tmp_path / "whole", "s", TABLES, TEXTS), column, Wanted(7))
    cut = drawn(write_step(tmp_path / "cut", "s", TABLES, TEXTS, bits=3), column, Wanted(7))
    assert [(one.id, one.value, one.labels) for one in whole[0]] == [(one.id, one.value, one.labels) for one in cut[0]]
    assert whole[1] == cut[1]


def test_larger_sample_contains_the_smaller_and_another_seed_draws_others(tmp_path: Path) -> None:
    place = write_step(tmp_path, "s", TABLES, TEXTS, bits=1)
    small, large, other = (
        {one.id for one in drawn(place, "personal", wanted)[0]} for wanted in (Wanted(5), Wanted(20), Wanted(5, seed=1))
    )
    assert small < large and small != other


def test_documents_are_chosen_by_label(tmp_path: Path) -> None:
    place = write_step(tmp_path, "s", TABLES, TEXTS, bits=2)
    found, matching = drawn(place, "language", Wanted(100, label="en"))
    assert matching == 20 and {one.value for one in found} == {"en"}
    found, matching = drawn(place, "personal", Wanted(100, label="phone", between=(2, 3)))
    assert {BY_ID[one.id] for one in found} == {number for number in range(60) if number % 4 == 3}
    assert matching == 15 and all(one.labels == {"phone": one.value} for one in found)


def test_text_is_read_only_on_request(tmp_path: Path) -> None:
    place = write_step(tmp_path, "s", TABLES, TEXTS, bits=2)
    found, _ = drawn(place, "personal", Wanted(60))
    assert all(one.excerpt is None for one in found)
    for one in with_excerpts(found):
        text = TEXTS[BY_ID[one.id]]
        assert one.excerpt == (text if len(text) <= EXCERPT else text[:EXCERPT] + "…")
    for path in (tmp_path / "sources/s/data").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(NotFoundError, match="leave out --text"):
        with_excerpts(found)


@pytest.mark.parametrize(
    ("column", "wanted", "message"),
    [
        ("quality", Wanted(0), "--sample 0: give a number"),
        ("quality", Wanted(1, between=(2, 1)), "give the smaller number first"),
        ("quality", Wanted(1, between=(float("nan"), 1)), "give the smaller number first"),
        ("quality", Wanted(1, label="de"), "holds no labels"),
        ("language", Wanted(1, between=(0, 1)), "holds no numbers"),
        ("quality", Wanted(1, seed=-1), "--seed -1: give a number"),
    ],
)
def test_request_that_cannot_match_is_refused(tmp_path: Path, column: str, wanted: Wanted, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        drawn(write_step(tmp_path, "s", TABLES, TEXTS), column, wanted)
