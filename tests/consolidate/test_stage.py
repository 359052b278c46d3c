"""The consolidated dataset is the normalized one without exactly the documents that dedup named."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datakit.consolidate.stage import CORE, NAME, Config, plan
from datakit.engine.task import Output, StepInput
from datakit.errors import CorruptError, EmptyStageError, RecipeError
from datakit.storage.manifest import totals_of
from datakit.storage.parquet import columns_of
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import attributes, contents, documents, identity, normalized, step, words


def consolidate(root: Path, inputs: list[StepInput], **parameters: object) -> tuple[Output, dict[str, int]]:
    """Run the stage; return its output and the sums of its tasks' counters."""
    output, results = run_plan_inline(plan(step(root / "out", NAME, inputs, **parameters)), str(root / "out"))
    names = {name for result in results for name in result.counters}
    return output, {name: sum(result.counters.get(name, 0) for result in results) for name in names}


def test_only_named_documents_are_removed(tmp_path: Path) -> None:
    novels, laws = words(1, 300), words(2, 200)
    reasons = {identity(text): ("exact" if number % 2 else "fuzzy") for number, text in enumerate(novels[10:60])}
    inputs = [
        normalized(tmp_path / "n", "novels", novels, bits=2),
        normalized(tmp_path / "n", "laws", laws, bits=1),
        attributes(tmp_path / "dedup", {"novels": reasons, "laws": {}}, bits={"novels": 2, "laws": 1}),
    ]
    output, counters = consolidate(tmp_path, inputs)

    kept = pq.read_table([tmp_path / "out" / part.path for part in output.partitions if part.source == "novels"])
    assert kept["text"].to_pylist() == [
        text for text in documents("novels", novels)["text"].to_pylist() if identity(text) not in reasons
    ]
    assert counters == {
        "consolidate/records_in": 500,
        "consolidate/dropped_exact": 25,
        "consolidate/dropped_fuzzy": 25,
        "consolidate/dropped_quarantined": 0,
        "consolidate/marked_kept": 0,
        "consolidate/records_out": 450,
    }
    assert totals_of(output.partitions).rows == 450
    assert output.details["sources"]["novels"]["dropped"] == {"exact": 25, "fuzzy": 25}


def test_partitions_keep_names_and_have_metadata(tmp_path: Path) -> None:
    output, _ = consolidate(tmp_path, [normalized(tmp_path / "n", "laws", words(2, 200), bits=2)])
    assert [part.path for part in output.partitions] == [
        f"data/laws/part-{index:05d}-of-00004.parquet" for index in range(4)
    ]
    for part in output.partitions:
        table = pq.read_table(tmp_path / "out" / part.path)
        assert part.rows == table.num_rows
        assert part.text_bytes == sum(len(text.encode()) for text in table["text"].to_pylist())
        assert (part.first_id, part.last_id) == (table["id"][0].as_py(), table["id"][-1].as_py())
        assert part.bytes == (tmp_path / "out" / part.path).stat().st_size


def test_sources_keep_columns_and_get_edited_id(tmp_path: Path) -> None:
    novels, laws = words(1, 20), words(2, 20)
    inputs = [
        normalized(tmp_path / "n", "novels", novels, columns={"year": list(range(20)), "edited_id": ["old"] * 20}),
        normalized(tmp_path / "n", "laws", laws, columns={"tags": [["a"], []] * 10}),
    ]
    output, _ = consolidate(tmp_path, inputs)
    by_source = {part.source: pq.read_table(tmp_path / "out" / part.path) for part in output.partitions}
    core = ["id", "text", "source", "source_id"]
    assert by_source["novels"].column_names == [*core, "year", "edited_id"]
    assert by_source["laws"].column_names == [*core, "tags", "edited_id"]
    assert by_source["novels"]["edited_id"].null_count == 20
    assert [column.name for column in columns_of(output.schema)] == [*core, "edited_id"]
    assert output.schema.equals(CORE)


def test_only_reasons_in_the_recipe_remove(tmp_path: Path) -> None:
    texts = words(1, 50)
    reasons = {identity(text): ("exact" if number % 2 else "fuzzy") for number, text in enumerate(texts[:10])}
    inputs = [normalized(tmp_path / "n", "novels", texts), attributes(tmp_path / "dedup", {"novels": reasons})]
    _, counters = consolidate(tmp_path, inputs, drop=["exact"])
    assert counters["consolidate/records_out"] == 45
    assert (counters["consolidate/dropped_fuzzy"], counters["consolidate/marked_kept"]) == (0, 5)
    with pytest.raises(RecipeError, match="did you mean 'fuzzy'"):
        Config(drop=("fuzy",))


def test_partitions_may_become_empty_but_not_datasets(tmp_path: Path) -> None:
    novels, laws = words(1, 5), words(2, 5)
    everything = {identity(text): "exact" for text in novels}
    inputs = [normalized(tmp_path / "n", "novels", novels), normalized(tmp_path / "n", "laws", laws)]
    marks = attributes(tmp_path / "dedup", {"novels": everything, "laws": {}})
    output, _ = consolidate(tmp_path, [*inputs, marks])
    emptied = output.partitions[0]
    assert (emptied.source, emptied.rows, emptied.first_id) == ("novels", 0, None)
    everything_else = attributes(
        tmp_path / "d2", {"novels": everything, "laws": {identity(text): "exact" for text in laws}}
    )
    with pytest.raises(EmptyStageError, match="removed all 10 documents"):
        consolidate(tmp_path / "b", [*inputs, everything_else])


def test_attributes_without_a_document_are_rejected(tmp_path: Path) -> None:
    texts = words(1, 100)
    for stranger in ("0" * 32, identity("nobody"), "f" * 32):
        marks = attributes(tmp_path / stranger, {"novels": {identity(texts[0]): "exact", stranger: "exact"}})
        inputs = [normalized(tmp_path / "n" / stranger, "novels", texts), marks]
        with pytest.raises(CorruptError, match=stranger):
            consolidate(tmp_path / stranger, inputs)


def test_attributes_of_other_partitions_are_rejected(tmp_path: Path) -> None:
    texts = words(1, 40)
    inputs = [normalized(tmp_path / "n", "novels", texts, bits=1), attributes(tmp_path / "dedup", {"novels": {}})]
    with pytest.raises(CorruptError, match="not aligned"):
        consolidate(tmp_path, inputs)


def test_bytes_are_independent_of_partition_grouping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = words(1, 300)
    reasons = {identity(text): "exact" for text in texts[::7]}
    inputs = [normalized(tmp_path / "n", "novels", texts, 3), attributes(tmp_path / "dedup", {"novels": reasons}, 3)]
    consolidate(tmp_path / "a", inputs)
    monkeypatch.setattr("datakit.engine.partition_grouping.SMALLEST", 1)
    consolidate(tmp_path / "b", inputs)
    assert contents(tmp_path / "a" / "out") == contents(tmp_path / "b" / "out")
