"""The consolidated dataset is the normalized one without exactly the rows that the selection lists."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from datakit.consolidate.stage import CORE, NAME, plan
from datakit.engine.task import Output, StepInput
from datakit.errors import CorruptError
from datakit.storage.manifest import totals_of
from datakit.storage.parquet import columns_of
from tests.support.engine.inline import run_plan_inline
from tests.support.partitions import contents, documents, identity, normalized, selection, step, words

Marks = dict[str, dict[str, list[str]]]


def consolidate(
    root: Path, inputs: list[StepInput], leaving: Marks | None = None, **parameters: object
) -> tuple[Output, dict[str, int]]:
    """Run the stage; return its output and the sums of its tasks' counters. leaving: the documents that leave."""
    inputs = [*inputs, selection(root / "selection", inputs, leaving)]
    output, results = run_plan_inline(plan(step(root / "out", NAME, inputs, **parameters)), str(root / "out"))
    names = {name for result in results for name in result.counters}
    return output, {name: sum(result.counters.get(name, 0) for result in results) for name in names}


def test_only_listed_documents_leave(tmp_path: Path) -> None:
    novels, laws = words(1, 300), words(2, 200)
    leaving = {"novels": {identity(text): ["exact"] for text in novels[10:60]}}
    inputs = [
        normalized(tmp_path / "n", "novels", novels, bits=2),
        normalized(tmp_path / "n", "laws", laws, bits=1),
    ]
    output, counters = consolidate(tmp_path, inputs, leaving)

    kept = pq.read_table([tmp_path / "out" / part.path for part in output.partitions if part.source == "novels"])
    assert kept["text"].to_pylist() == [
        text for text in documents("novels", novels)["text"].to_pylist() if identity(text) not in leaving["novels"]
    ]
    assert counters == {
        "consolidate/records_in": 450,
        "consolidate/dropped_quarantined": 0,
        "consolidate/unchanged_partitions": 2,
        "consolidate/records_out": 450,
    }
    assert totals_of(output.partitions).rows == 450
    assert output.details["sources"]["novels"]["dropped"] == {"exact": 50}


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


def test_sources_keep_their_columns(tmp_path: Path) -> None:
    novels, laws = words(1, 20), words(2, 20)
    inputs = [
        normalized(tmp_path / "n", "novels", novels, columns={"year": list(range(20))}),
        normalized(tmp_path / "n", "laws", laws, columns={"tags": [["a"], []] * 10}),
    ]
    output, _ = consolidate(tmp_path, inputs, {"novels": {identity(novels[3]): ["exact"]}})
    by_source = {part.source: pq.read_table(tmp_path / "out" / part.path) for part in output.partitions}
    core = ["id", "text", "source", "source_id"]
    assert by_source["novels"].column_names == [*core, "year", "edited_id"]
    assert by_source["laws"].column_names == [*core, "tags", "edited_id"]
    assert [column.name for column in columns_of(output.schema)] == [*core, "edited_id"]
    assert output.schema.equals(CORE)


def test_partitions_that_lose_nothing_are_the_normalized_files(tmp_path: Path) -> None:
    texts = words(1, 200)
    inputs = [normalized(tmp_path / "n", "novels", texts, bits=2)]
    gone = next(text for text in texts if identity(text)[0] in "4567")  # in the second quarter
    output, counters = consolidate(tmp_path, inputs, {"novels": {identity(gone): ["exact"]}})
    assert counters["consolidate/unchanged_partitions"] == 3
    theirs = inputs[0].manifest.partitions
    for number, (ours, above) in enumerate(zip(output.partitions, theirs, strict=True)):
        paths = tmp_path / "out" / ours.path, tmp_path / "n" / "novels" / above.path
        assert os.path.samefile(*paths) == (number != 1)
        assert (ours == above) == (number != 1)


def test_damaged_file_is_not_passed_on(tmp_path: Path) -> None:
    inputs = [normalized(tmp_path / "n", "novels", words(1, 20))]
    made = step(tmp_path / "out", NAME, [*inputs, selection(tmp_path / "selection", inputs)])
    path = tmp_path / "n" / "novels" / inputs[0].manifest.partitions[0].path
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptError, match="but the manifest of the normalize step states"):
        run_plan_inline(plan(made), made.directory)


def test_partition_may_become_empty(tmp_path: Path) -> None:
    novels, laws = words(1, 5), words(2, 5)
    inputs = [normalized(tmp_path / "n", "novels", novels), normalized(tmp_path / "n", "laws", laws)]
    output, _ = consolidate(tmp_path, inputs, {"novels": {identity(text): ["exact"] for text in novels}})
    emptied = output.partitions[0]
    assert (emptied.source, emptied.rows, emptied.first_id) == ("novels", 0, None)


def test_selection_of_another_version_is_rejected(tmp_path: Path) -> None:
    """The lists name rows. A different id, a row beyond the end and a different number of partitions are noticed."""
    texts, others = words(1, 40), words(2, 40)
    (ours, theirs) = (normalized(tmp_path / name, "novels", group) for name, group in (("a", texts), ("b", others)))
    longer = normalized(tmp_path / "c", "novels", [*texts, *others])
    split = normalized(tmp_path / "d", "novels", texts, bits=1)
    last = {"novels": {documents("novels", [*texts, *others])["id"][-1].as_py(): ["exact"]}}
    for name, other, leaving, message in (
        ("b", theirs, {"novels": {identity(text): ["exact"] for text in others}}, "lists different ids than"),
        ("c", longer, last, "lists row 79, but .* has only 40 rows"),
        ("d", split, None, "not aligned"),
    ):
        made = step(tmp_path / "out" / name, NAME, [ours, selection(tmp_path / "s" / name, [other], leaving)])
        with pytest.raises(CorruptError, match=message):
            run_plan_inline(plan(made), made.directory)


def test_bytes_are_independent_of_partition_grouping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = words(1, 300)
    leaving = {"novels": {identity(text): ["exact"] for text in texts[::7]}}
    inputs = [normalized(tmp_path / "n", "novels", texts, 3)]
    consolidate(tmp_path / "a", inputs, leaving)
    monkeypatch.setattr("datakit.engine.partition_grouping.SMALLEST", 1)
    consolidate(tmp_path / "b", inputs, leaving)
    assert contents(tmp_path / "a" / "out") == contents(tmp_path / "b" / "out")
