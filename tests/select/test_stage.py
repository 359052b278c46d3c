"""The selection lists exactly the documents that dedup marked for a reason in the recipe, and all counts add up."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datakit.engine.task import Output, StepInput
from datakit.errors import CorruptError, EmptyStageError, RecipeError
from datakit.select.stage import NAME, Config, plan
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import attributes, contents, identity, normalized, step, words


def select(root: Path, inputs: list[StepInput], **parameters: object) -> tuple[Output, dict[str, int]]:
    """Run the stage; return its output and the sums of its tasks' counters."""
    output, results = run_plan_inline(plan(step(root / "out", NAME, inputs, **parameters)), str(root / "out"))
    names = {name for result in results for name in result.counters}
    return output, {name: sum(result.counters.get(name, 0) for result in results) for name in names}


def test_marked_documents_are_listed_with_row_and_reason(tmp_path: Path) -> None:
    novels, laws = words(1, 300), words(2, 200)
    reasons = {identity(text): ("exact" if number % 2 else "fuzzy") for number, text in enumerate(novels[10:60])}
    inputs = [
        normalized(tmp_path / "n", "novels", novels, bits=2),
        normalized(tmp_path / "n", "laws", laws, bits=1),
        attributes(tmp_path / "dedup", {"novels": reasons, "laws": {}}, bits={"novels": 2, "laws": 1}),
    ]
    output, counters = select(tmp_path, inputs)
    for part in output.partitions:
        names = pq.read_table(tmp_path / "n" / part.source / part.path)["id"].to_pylist()
        wanted = [
            {"id": name, "row": row, "reasons": [reasons[name]]} for row, name in enumerate(names) if name in reasons
        ]
        assert pq.read_table(tmp_path / "out" / part.path).to_pylist() == wanted
        ends = (wanted[0]["id"], wanted[-1]["id"]) if wanted else (None, None)
        assert (part.rows, part.first_id, part.last_id) == (len(wanted), *ends)
    assert counters == {
        "select/records_in": 500,
        "select/records_out": 450,
        "select/dropped_exact": 25,
        "select/dropped_fuzzy": 25,
        "select/marked_kept": 0,
    }
    assert output.details["sources"]["novels"] == {
        "records_in": 300,
        "leaving": {"exact": 25, "fuzzy": 25},
        "combinations": {"exact": 25, "fuzzy": 25},
        "records_out": 250,
        "text_bytes_in": sum(len(text.encode()) for text in novels),
    }


def test_only_reasons_in_the_recipe_remove(tmp_path: Path) -> None:
    texts = words(1, 50)
    reasons = {identity(text): ("exact" if number % 2 else "fuzzy") for number, text in enumerate(texts[:10])}
    inputs = [normalized(tmp_path / "n", "novels", texts), attributes(tmp_path / "dedup", {"novels": reasons})]
    output, counters = select(tmp_path, inputs, drop=["exact"])
    assert (counters["select/records_out"], counters["select/marked_kept"]) == (45, 5)
    assert output.details["drop"] == ["exact"]
    with pytest.raises(RecipeError, match="did you mean 'fuzzy'"):
        Config(drop=("fuzy",))


def test_without_dedup_every_document_stays(tmp_path: Path) -> None:
    output, counters = select(tmp_path, [normalized(tmp_path / "n", "laws", words(2, 200), bits=2)])
    assert [part.path for part in output.partitions] == [
        f"data/laws/part-{index:05d}-of-00004.parquet" for index in range(4)
    ]
    assert counters["select/records_out"] == 200
    assert all(part.rows == 0 for part in output.partitions)


def test_dataset_may_not_become_empty(tmp_path: Path) -> None:
    novels, laws = words(1, 5), words(2, 5)
    everything = {identity(text): "exact" for text in novels}
    inputs = [normalized(tmp_path / "n", "novels", novels), normalized(tmp_path / "n", "laws", laws)]
    select(tmp_path, [*inputs, attributes(tmp_path / "dedup", {"novels": everything, "laws": {}})])
    marks = attributes(tmp_path / "d2", {"novels": everything, "laws": {identity(text): "exact" for text in laws}})
    with pytest.raises(EmptyStageError, match="removed all 10 documents"):
        select(tmp_path / "b", [*inputs, marks])


def test_marks_without_a_document_are_rejected(tmp_path: Path) -> None:
    texts = words(1, 100)
    for stranger in ("0" * 32, identity("nobody"), "f" * 32):
        marks = attributes(tmp_path / stranger, {"novels": {identity(texts[0]): "exact", stranger: "exact"}})
        inputs = [normalized(tmp_path / "n" / stranger, "novels", texts), marks]
        with pytest.raises(CorruptError, match=stranger):
            select(tmp_path / stranger, inputs)


def test_marks_of_other_partitions_are_rejected(tmp_path: Path) -> None:
    texts = words(1, 40)
    inputs = [normalized(tmp_path / "n", "novels", texts, bits=1), attributes(tmp_path / "dedup", {"novels": {}})]
    with pytest.raises(CorruptError, match="not aligned"):
        select(tmp_path, inputs)


def test_file_with_other_rows_than_its_manifest_states_is_rejected(tmp_path: Path) -> None:
    (ours, theirs) = (normalized(tmp_path / name, "novels", words(1, size)) for name, size in (("a", 40), ("b", 41)))
    path = ours.manifest.partitions[0].path
    (Path(ours.directory) / path).write_bytes((Path(theirs.directory) / path).read_bytes())
    with pytest.raises(CorruptError, match="the manifest lists 40 rows, but 41 were read"):
        select(tmp_path, [ours])


def test_bytes_are_independent_of_partition_grouping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = words(1, 300)
    reasons = {identity(text): "exact" for text in texts[::7]}
    inputs = [normalized(tmp_path / "n", "novels", texts, 3), attributes(tmp_path / "dedup", {"novels": reasons}, 3)]
    select(tmp_path / "a", inputs)
    monkeypatch.setattr("datakit.engine.partition_grouping.SMALLEST", 1)
    select(tmp_path / "b", inputs)
    assert contents(tmp_path / "a" / "out") == contents(tmp_path / "b" / "out")
