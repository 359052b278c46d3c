"""The consolidated dataset is the normalized one without exactly the documents that dedup named, or there is none."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.consolidate import join as joining
from datakit.consolidate.join import join
from datakit.consolidate.stage import CORE, NAME, Config, plan
from datakit.engine.inline import run_plan_inline
from datakit.engine.task import Output, StepInput
from datakit.errors import CorruptError, EmptyStageError, RecipeError
from datakit.storage.manifest import totals_of
from datakit.storage.parquet import ShardWriter, columns_of
from tests.support.partitions import ATTRIBUTES, attributes, contents, documents, identity, normalized, step, words


def consolidate(root: Path, inputs: list[StepInput], **parameters: object) -> tuple[Output, dict[str, int]]:
    """Run the stage; its output and the sums of its tasks' counters."""
    output, results = run_plan_inline(plan(step(root / "out", NAME, inputs, **parameters)), str(root / "out"))
    names = {name for result in results for name in result.counters}
    return output, {name: sum(result.counters.get(name, 0) for result in results) for name in names}


def test_drops_the_named_documents_and_nothing_else(tmp_path: Path) -> None:
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


def test_partitions_keep_their_names_and_describe_themselves(tmp_path: Path) -> None:
    output, _ = consolidate(tmp_path, [normalized(tmp_path / "n", "laws", words(2, 200), bits=2)])
    assert [part.path for part in output.partitions] == [
        f"laws/part-{index:05d}-of-00004.parquet" for index in range(4)
    ]
    for part in output.partitions:
        table = pq.read_table(tmp_path / "out" / part.path)
        assert part.rows == table.num_rows
        assert part.text_bytes == sum(len(text.encode()) for text in table["text"].to_pylist())
        assert (part.first_id, part.last_id) == (table["id"][0].as_py(), table["id"][-1].as_py())
        assert part.bytes == (tmp_path / "out" / part.path).stat().st_size


def test_each_source_keeps_its_columns_and_gets_edited_id(tmp_path: Path) -> None:
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


def test_only_the_reasons_of_the_recipe_drop(tmp_path: Path) -> None:
    texts = words(1, 50)
    reasons = {identity(text): ("exact" if number % 2 else "fuzzy") for number, text in enumerate(texts[:10])}
    inputs = [normalized(tmp_path / "n", "novels", texts), attributes(tmp_path / "dedup", {"novels": reasons})]
    _, counters = consolidate(tmp_path, inputs, drop=["exact"])
    assert counters["consolidate/records_out"] == 45
    assert (counters["consolidate/dropped_fuzzy"], counters["consolidate/marked_kept"]) == (0, 5)
    with pytest.raises(RecipeError, match="did you mean 'fuzzy'"):
        Config(drop=("fuzy",))


def test_a_partition_may_lose_all_its_documents_but_the_dataset_may_not(tmp_path: Path) -> None:
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


def test_an_attribute_without_its_document_is_an_error(tmp_path: Path) -> None:
    texts = words(1, 100)
    for stranger in ("0" * 32, identity("nobody"), "f" * 32):
        marks = attributes(tmp_path / stranger, {"novels": {identity(texts[0]): "exact", stranger: "exact"}})
        inputs = [normalized(tmp_path / "n" / stranger, "novels", texts), marks]
        with pytest.raises(CorruptError, match=stranger):
            consolidate(tmp_path / stranger, inputs)


def test_ids_out_of_order_are_an_error_on_either_side(tmp_path: Path) -> None:
    good = documents("novels", words(1, 40))
    blank = [pa.nulls(40, field.type) for field in list(ATTRIBUTES)[2:]]
    marks = pa.table([good["id"], pa.array(["exact"] * 40), *blank], schema=ATTRIBUTES)
    swapped, doubled = [*range(1, 40), 0], [0, *range(39)]

    def written(name: str, table: pa.Table) -> str:
        with ShardWriter(str(tmp_path / name), table.schema) as writer:
            writer.write(table)
        return str(tmp_path / name)

    rows, names = written("rows", good), written("names", marks)
    assert sum(part.dropped.total() for part in join(rows, names, frozenset({"exact"}))) == 40
    for number, order in enumerate((swapped, doubled)):
        with pytest.raises(CorruptError, match="not strictly ascending"):
            list(join(written(f"rows{number}", good.take(order)), names, frozenset({"exact"})))
        with pytest.raises(CorruptError, match="not strictly ascending"):
            list(join(rows, written(f"names{number}", marks.take(order)), frozenset({"exact"})))


def test_attributes_of_other_partitions_are_refused(tmp_path: Path) -> None:
    texts = words(1, 40)
    inputs = [normalized(tmp_path / "n", "novels", texts, bits=1), attributes(tmp_path / "dedup", {"novels": {}})]
    with pytest.raises(CorruptError, match="not aligned"):
        consolidate(tmp_path, inputs)


def test_the_card_tells_the_counts_and_the_lineage(tmp_path: Path) -> None:
    texts = words(1, 30)
    marks = attributes(tmp_path / "dedup", {"novels": {identity(texts[0]): "fuzzy"}})
    consolidate(tmp_path, [normalized(tmp_path / "n", "novels", texts), marks])
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith('---\npretty_name: "test"\n')
    assert 'path: "novels/part-*.parquet"' in card
    assert "| novels | 1 | 30 | 0 | 1 | 29 |" in card
    assert "| normalize | novels | " in card and "`../n/novels` |" in card


def test_bytes_do_not_depend_on_how_partitions_are_grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = words(1, 300)
    reasons = {identity(text): "exact" for text in texts[::7]}
    inputs = [normalized(tmp_path / "n", "novels", texts, 3), attributes(tmp_path / "dedup", {"novels": reasons}, 3)]
    consolidate(tmp_path / "a", inputs)
    monkeypatch.setattr("datakit.engine.task_grouping.SMALLEST", 1)
    consolidate(tmp_path / "b", inputs)
    assert contents(tmp_path / "a" / "out") == contents(tmp_path / "b" / "out")


@settings(max_examples=40, deadline=None)
@given(
    ids=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1) | st.integers(0, 3)), min_size=1, max_size=60),
    data=st.data(),
    rows_per_group=st.integers(1, 9),
)
def test_the_merge_equals_a_set_difference(ids: set[tuple[int, int]], data: st.DataObject, rows_per_group: int) -> None:
    """Also where ids share their upper half, and wherever row groups end."""
    names = sorted(f"{high:016x}{low:016x}" for high, low in ids)
    marked = sorted(data.draw(st.sets(st.sampled_from(names))))
    leaving = set(data.draw(st.sets(st.sampled_from(marked)))) if marked else set()
    table = pa.table({"id": names, "text": pa.array(names, pa.large_string())})
    marks = pa.table(
        {"id": pa.array(marked, pa.string()), "reason": ["exact" if x in leaving else "fuzzy" for x in marked]}
    )
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/rows", row_group_size=rows_per_group)
        pq.write_table(
            marks.cast(pa.schema([("id", pa.string()), ("reason", pa.string())])), f"{folder}/marks", row_group_size=2
        )
        parts = list(join(f"{folder}/rows", f"{folder}/marks", frozenset({"exact"})))
    kept = [name for part in parts for name in part.kept["id"].to_pylist()]
    assert kept == [name for name in names if name not in leaving]
    assert sum(part.rows_in for part in parts) == len(names)
    assert sum(part.marked_kept for part in parts) == len(marked) - len(leaving)


def test_count_up_to_compares_whole_ids() -> None:
    import numpy as np

    high, low = np.array([1, 1, 1, 2], np.uint64), np.array([3, 5, 9, 0], np.uint64)
    assert [joining.count_up_to(high, low, limit) for limit in [(0, 9), (1, 4), (1, 5), (1, 10), (2, 0)]] == [
        0,
        1,
        2,
        3,
        4,
    ]
