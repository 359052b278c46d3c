"""A summary counts every row, null, number and label of a column, whatever the number of partitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from datakit.annotate.annotator import SPANS
from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.pipeline.attributes import quantiles, summary
from datakit.pipeline.attributes.columns import columns_of, find_column
from datakit.pipeline.attributes.summary import ColumnSummary, histogram, summarize
from datakit.pipeline.attributes.tables import annotated
from datakit.storage.parquet import ShardWriter, read_shard
from tests.support.annotate.attribute_steps import write_step

TEXTS = [f"text {number}" for number in range(50)]
SCORES = [None if number % 7 == 0 else number / 50 for number in range(50)]
LABELS = [None if number % 7 == 0 else ("de" if number % 3 else "en") for number in range(50)]
KINDS = [["email"] * (number % 3) + ["phone"] * (number % 2) for number in range(50)]
TABLES = {
    "quality": {"score": pa.array(SCORES, pa.float32()), "count": pa.array(range(50), pa.uint64())},
    "language": {"label": pa.array(LABELS), "score": pa.array(SCORES, pa.float64())},
    "personal": {
        "spans": pa.array([[{"start": 0, "stop": 1, "kind": one} for one in kinds] for kinds in KINDS], SPANS)
    },
}


def summaries(place: str) -> dict[str, ColumnSummary]:
    found = annotated(place)
    return {one.column: one for one in summarize(found.files, columns_of(found))}


def test_numbers_labels_and_lists_are_summarized(tmp_path: Path) -> None:
    found = summaries(write_step(tmp_path, "s", TABLES, TEXTS, bits=2))
    assert list(found) == ["language.label", "language.score", "personal.spans", "quality.score", "quality.count"]
    score, label, spans = found["quality.score"], found["language.label"], found["personal.spans"]
    known = sorted(one for one in SCORES if one is not None)
    assert (score.rows, score.nulls, score.not_finite) == (50, 8, 0)
    assert score.numbers is not None and score.numbers.count == 42
    assert (score.numbers.least, score.numbers.most, score.numbers.error) == (known[0], known[-1], 0)
    assert score.numbers.median == known[20]
    assert label.labels is not None and label.labels.counts == (("de", 28), ("en", 14))
    assert (label.nulls, label.numbers) == (8, None)
    counts = sorted(((sum(k.count(one) for k in KINDS)), one) for one in ("email", "phone"))[::-1]
    assert spans.labels is not None and spans.labels.counts == tuple((one, count) for count, one in counts)
    assert spans.numbers is not None and spans.numbers.most == max(map(len, KINDS))


def test_partitions_and_approximate_quantiles_do_not_depend_on_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = summaries(write_step(tmp_path / "whole", "s", TABLES, TEXTS))
    assert summaries(write_step(tmp_path / "cut", "s", TABLES, TEXTS, bits=3)) == whole
    monkeypatch.setattr(quantiles, "EXACT", 5)
    near = [summaries(write_step(tmp_path / str(bits), "s", TABLES, TEXTS, bits))["quality.count"] for bits in (0, 3)]
    assert near[0] == near[1] and near[0].numbers is not None
    assert near[0].numbers.error > 0


def test_histogram_counts_what_the_summary_counts(tmp_path: Path) -> None:
    found = annotated(write_step(tmp_path, "s", TABLES, TEXTS, bits=1))
    column = find_column("quality.score", columns_of(found))
    files = found.select(lambda file: file.annotator == "quality")
    (about,) = summarize(files, [column])
    assert about.numbers is not None
    bins = histogram(files, column, about.numbers, "linear", 10)
    known = [one for one in SCORES if one is not None]
    pairs = itertools.pairwise(bins.edges)
    expected = [sum(low <= one < high for one in known) for low, high in pairs]
    assert bins.edges == tuple(number / 10 for number in range(11))
    assert list(bins.counts) == expected and sum(bins.counts) == about.numbers.count


def test_nan_and_infinity_are_counted_and_left_out(tmp_path: Path) -> None:
    values = pa.array([float("nan"), float("inf"), -float("inf"), None, 1.0, 2.0], pa.float64())
    found = summaries(write_step(tmp_path, "s", {"odd": {"value": values}}, TEXTS[:6]))["odd.value"]
    assert (found.nulls, found.not_finite) == (1, 3)
    assert found.numbers is not None and (found.numbers.least, found.numbers.most) == (1, 2)


@pytest.mark.parametrize(("constant", "limit"), [("DISTINCT", 1), ("LABEL_BYTES", 3)])
def test_too_many_labels_are_not_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constant: str, limit: int
) -> None:
    monkeypatch.setattr(summary, constant, limit)
    found = summaries(write_step(tmp_path, "s", TABLES, TEXTS, bits=2))["language.label"]
    assert found.labels is not None and found.labels.counts is None
    with pytest.raises(UsageError, match=r"language.label has more than .* different labels.*--sample"):
        found.require_countable()


def test_column_is_found_by_any_unambiguous_name(tmp_path: Path) -> None:
    columns = columns_of(annotated(write_step(tmp_path, "s", TABLES, TEXTS)))
    assert str(find_column("label", columns)) == "language.label"
    assert str(find_column("personal", columns)) == "personal.spans"
    with pytest.raises(UsageError, match=r"score could be language.score, quality.score; name one of them"):
        find_column("score", columns)
    with pytest.raises(UsageError, match=r"did you mean 'quality\.score'"):
        find_column("quality.scores", columns)


def test_file_that_lacks_rows_or_columns_is_refused(tmp_path: Path) -> None:
    place = write_step(tmp_path, "s", TABLES, TEXTS)
    path = Path(place, "data/s/quality/part-00000-of-00001.parquet")
    table = read_shard(str(path))
    for changed, message in (
        (table.slice(1), r"has 49 rows, but the manifest states 50"),
        (table.drop_columns(["count"]).append_column("count", table["score"]), "'count' of type uint64"),
    ):
        found = annotated(place)
        columns = columns_of(found)
        path.unlink()
        with ShardWriter(str(path), changed.schema) as writer:
            writer.write(changed)
        with pytest.raises(CorruptError, match=message):
            summarize(found.files, columns)


def test_step_without_tables_is_refused_by_what_it_is(tmp_path: Path) -> None:
    place = Path(write_step(tmp_path, "s", TABLES, TEXTS))
    with pytest.raises(UsageError, match="is a step of the stage normalize"):
        annotated(str(place.parents[1] / "s"))
    (place / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match="is not a finished step; `datakit status"):
        annotated(str(place))
    with pytest.raises(NotFoundError, match=r"has no finished annotate step; give an annotate step's directory"):
        annotated(str(tmp_path))
