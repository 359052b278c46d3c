"""Stage dedup from outside: what its attributes promise, on sources made for each promise."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import FileMetaData

from datakit.dedup import stage, warm_kernels
from datakit.dedup.attributes import SCHEMA
from datakit.dedup.clusters import components
from datakit.dedup.exact_duplicates import copies
from datakit.dedup.minhash import kernels as minhash_kernels
from datakit.dedup.minhash import signatures_stage
from datakit.dedup.verification import kernels
from datakit.engine.inline import run_task_inline
from datakit.engine.task import Output, Plan, TaskResult
from datakit.errors import ColumnError, CorruptError, StepFailedError
from datakit.storage.ids import partition_range
from datakit.storage.parquet import open_shard, read_shard
from datakit.text import shingle_kernels
from tests.support.dedup import dedup_oracle as oracle
from tests.support.dedup.dedup_inputs import Deduplicated, dedup_step, deduplicate, id_of, run_step, sign, write_source

VOCABULARY = [f"word{i}" for i in range(5000)]


def text_of(seed: int, words: int = 120) -> str:
    """A text of its own."""
    return " ".join(random.Random(seed).choices(VOCABULARY, k=words))


def edited(text: str, seed: int, changes: int = 1) -> str:
    """The text with some words replaced by new ones: each changes five shingles."""
    generator, words = random.Random(seed), text.split()
    for place in generator.sample(range(len(words)), changes):
        words[place] = f"edit{generator.random()}"
    return " ".join(words)


def removals(result: Deduplicated) -> dict[tuple[str, str], dict]:
    """(source, id) -> attributes of every removed document."""
    return {(row["source"], row["id"]): row for row in result.attributes()}


def check_conservation(result: Deduplicated) -> None:
    """Every document is retained or removed for a reason; totals, sources and files agree."""
    counters, sources = result.manifest.counters, result.manifest.details["sources"]
    gone = counters["dedup/exact_removed"] + counters["dedup/fuzzy_removed"]
    documents = sum(entry.manifest.totals.rows for entry in result.inputs if entry.role == "normalize")
    assert counters["dedup/documents_in"] == documents == counters["dedup/retained"] + gone
    assert result.manifest.totals.rows == gone == len(result.attributes())
    for total, name in (("documents_in", "documents"), ("exact_removed", "exact"), ("fuzzy_removed", "fuzzy")):
        assert sum(entry[name] for entry in sources.values()) == counters[f"dedup/{total}"]
    assert counters["dedup/comparisons"] == counters["dedup/rejected"] + counters["dedup/fuzzy_removed"]


def test_the_first_source_keeps_what_several_have(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(60)]
    sources = [
        write_source(tmp_path, "first", texts[:30], bits=2),
        write_source(tmp_path, "second", texts[20:50], bits=0),
        write_source(tmp_path, "third", texts[10:60], bits=3),
    ]
    result = deduplicate(tmp_path, sources)
    expected = {("second", id_of(text)): "first" for text in texts[20:30]}
    expected |= {("third", id_of(text)): "first" if i < 20 else "second" for i, text in enumerate(texts[10:50])}
    found = removals(result)
    assert {key: row["representative_source"] for key, row in found.items()} == expected
    for (_, identity), row in found.items():
        assert (row["reason"], row["jaccard"]) == ("exact", 1.0)
        assert row["representative_id"] == row["cluster_id"] == identity
    check_conservation(result)


def test_near_duplicates_go_and_name_a_retained_document_with_its_exact_similarity(tmp_path: Path) -> None:
    originals = [text_of(i, 300) for i in range(40)]
    near = [edited(text, i, 1 + i % 8) for i, text in enumerate(originals)]
    sources = [write_source(tmp_path, "a", originals, bits=1), write_source(tmp_path, "b", near, bits=2)]
    result = deduplicate(tmp_path, sources)
    text_by_id = {id_of(text): text for text in originals + near}
    found = removals(result)
    gone = {identity for _, identity in found}
    assert len(found) > 10
    for (_, identity), row in found.items():
        one, other = (oracle.shingles(text_by_id[name]) for name in (identity, row["representative_id"]))
        assert row["reason"] == "fuzzy"
        assert row["jaccard"] == oracle.jaccard(one, other) >= 0.8
        assert row["representative_id"] not in gone
        assert len(text_by_id[row["representative_id"]]) >= len(text_by_id[identity]), "the longest stays"
    check_conservation(result)


def test_an_exact_copy_of_a_fuzzy_duplicate_is_represented_by_what_stays(tmp_path: Path) -> None:
    original, duplicate = text_of(1) + " and the longest one stays", edited(text_of(1), 2)
    others = [text_of(i) for i in range(10, 20)]
    sources = [
        write_source(tmp_path, "a", [duplicate, *others], bits=1),
        write_source(tmp_path, "b", [duplicate, *others[:1], text_of(99)], bits=2),
        write_source(tmp_path, "c", [original, text_of(98)]),
    ]
    found = removals(deduplicate(tmp_path, sources))
    fuzzy, exact = found["a", id_of(duplicate)], found["b", id_of(duplicate)]
    assert (fuzzy["reason"], exact["reason"]) == ("fuzzy", "exact")
    assert exact["representative_id"] == fuzzy["representative_id"] == id_of(original)
    assert exact["representative_source"] == "c"
    assert exact["jaccard"] == fuzzy["jaccard"] < 1
    assert found["b", id_of(others[0])]["representative_source"] == "a"


def test_every_partition_has_its_file_sorted_by_id_even_an_empty_one(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(30)]
    sources = [write_source(tmp_path, "a", texts[:20], bits=3), write_source(tmp_path, "b", texts[15:], bits=1)]
    result = deduplicate(tmp_path, sources)
    assert [partition.path for partition in result.manifest.partitions] == [
        *(f"a/part-{i:05d}-of-00008.parquet" for i in range(8)),
        *(f"b/part-{i:05d}-of-00002.parquet" for i in range(2)),
    ]
    for source, bits in (("a", 3), ("b", 1)):
        for index, partition in enumerate(result.manifest.partitions_of(source)):
            table = read_shard(f"{result.directory}/{partition.path}")
            ids, (smallest, largest) = table["id"].to_pylist(), partition_range(index, bits)
            assert table.schema.equals(SCHEMA)
            assert partition.rows == len(ids)
            assert ids == sorted(set(ids))
            assert all(smallest <= identity <= largest for identity in ids)
            assert (partition.first_id, partition.last_id) == ((ids[0], ids[-1]) if ids else (None, None))
    assert sum(partition.rows for partition in result.manifest.partitions_of("a")) == 0


def test_who_stays_is_the_recipes_choice(tmp_path: Path) -> None:
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


def test_containment_takes_a_document_that_another_one_includes(tmp_path: Path) -> None:
    whole = text_of(7, 300)
    part = " ".join(whole.split()[:230])
    sources = [write_source(tmp_path, "s", [whole, part, *(text_of(i) for i in range(50, 60))])]
    assert not deduplicate(tmp_path / "jaccard", sources).attributes()
    for seed in range(20):  # at a similarity of 0.76 a pair is a candidate four times in five
        config = stage.Config(measure="containment", threshold=0.95, seed=seed)
        rows = deduplicate(tmp_path / f"containment-{seed}", sources, config).attributes()
        if rows:
            assert [row["id"] for row in rows] == [id_of(part)]
            assert rows[0]["jaccard"] == pytest.approx(226 / 296)
            return
    pytest.fail("never a candidate")


def test_short_documents_are_left_alone_and_counted(tmp_path: Path) -> None:
    texts = ["a b c d e f", "a b c d e f g h", "A b c d e f g h", *(text_of(i) for i in range(5))]
    result = deduplicate(tmp_path, [write_source(tmp_path, "s", texts)])
    assert not result.attributes()
    assert result.manifest.counters["dedup/too_short"] == 3
    check_conservation(result)


@pytest.mark.parametrize("texts", [[], ["only one"], [text_of(1)]])
def test_nothing_to_find_is_fine(tmp_path: Path, texts: list[str]) -> None:
    result = deduplicate(tmp_path, [write_source(tmp_path, "a", texts, bits=1), write_source(tmp_path, "b", [])])
    assert result.manifest.totals.rows == 0
    assert len(result.manifest.partitions) == 3
    check_conservation(result)


def mixed_sources(root: Path) -> list:
    """Exact and fuzzy duplicates within and across sources, chains, a family of many."""
    originals = [text_of(i, 60 + i) for i in range(80)]
    family = [edited(text_of(1000), i, 1) for i in range(40)]
    chain = [text_of(2000)]
    for i in range(12):
        chain.append(edited(chain[-1], i, 2))
    near = [edited(text, i, 1 + i % 6) for i, text in enumerate(originals)]
    return [
        write_source(root, "a", originals + family[:20] + chain[::2], bits=3),
        write_source(root, "b", near + family[10:30] + chain[1::2], bits=0),
        write_source(root, "c", originals[:30] + near[20:50] + family[25:], bits=2),
    ]


def attribute_bytes(result: Deduplicated) -> list[bytes]:
    """The attribute files."""
    return [Path(result.directory, partition.path).read_bytes() for partition in result.manifest.partitions]


def shuffled(plan: Plan, directory: str, seed: int) -> tuple[Output, list[TaskResult]]:
    """Runs a plan as workers would: the tasks of a phase in any order, the results in theirs."""
    everything: list[TaskResult] = []
    try:
        phase = next(plan)
        while True:
            order = random.Random(seed).sample(range(len(phase.tasks)), len(phase.tasks))
            done = {i: run_task_inline(phase.tasks[i], phase, directory) for i in order}
            results = [done[i] for i in range(len(phase.tasks))]
            everything += results
            phase = plan.send(results)
    except StopIteration as stop:
        return stop.value, everything


def test_the_answer_does_not_depend_on_how_work_is_cut_or_in_which_order_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = mixed_sources(tmp_path)
    step = dedup_step(tmp_path / "dedup", sources, stage.Config(max_removal=1.0))
    whole = run_step(step)
    check_conservation(whole)
    reasons = [row["reason"] for row in whole.attributes()]
    assert reasons.count("exact") > 50
    assert reasons.count("fuzzy") > 50
    monkeypatch.setattr(stage, "TASK_BYTES", 2000)
    monkeypatch.setattr("datakit.engine.task_grouping.LARGEST", 2000)
    monkeypatch.setattr("datakit.engine.task_grouping.SMALLEST", 2000)
    monkeypatch.setattr(stage, "FAN_IN", 3)
    monkeypatch.setattr("datakit.dedup.clusters.bands.FOLD_ROWS", 50)
    monkeypatch.setattr("datakit.dedup.exact_duplicates.TARGET_BYTES", 500)
    small = replace(step, directory=str(tmp_path / "small"))
    output, results = shuffled(stage.plan(small), small.directory, 4)
    assert len(results) > 60, "many more tasks"
    assert attribute_bytes(whole) == [Path(small.directory, entry.path).read_bytes() for entry in output.partitions]
    assert output.details == whole.manifest.details
    again = replace(step, directory=str(tmp_path / "again"))
    output, _ = shuffled(stage.plan(again), again.directory, 9)
    assert attribute_bytes(whole) == [Path(again.directory, entry.path).read_bytes() for entry in output.partitions]


def test_after_warming_up_no_task_compiles(tmp_path: Path) -> None:
    warm_kernels.warm()
    compiled = [
        minhash_kernels.sign, shingle_kernels.shingle_sets, components._unite, kernels._verify, kernels.copy_lists
    ]  # fmt: skip
    before = [len(kernel.signatures) for kernel in compiled]
    deduplicate(tmp_path, mixed_sources(tmp_path), stage.Config(max_removal=1.0))
    assert [len(kernel.signatures) for kernel in compiled] == before


def test_too_much_removal_stops_the_run_and_says_what(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(10)]
    sources = [write_source(tmp_path, "all", texts), write_source(tmp_path, "subset", texts[:5])]
    with pytest.raises(StepFailedError, match=r"'subset' would lose 5 of 5 documents \(5 exact, 0 fuzzy.*max_removal"):
        deduplicate(tmp_path / "stops", sources)
    assert deduplicate(tmp_path / "allowed", sources, stage.Config(max_removal=1.0)).manifest.totals.rows == 5


def test_raising_the_limit_changes_no_task(tmp_path: Path) -> None:
    """The limit is told beside the parameters, and tasks never see it: a run that it stopped goes on from there."""
    texts = [text_of(i) for i in range(10)]
    step = dedup_step(
        tmp_path, [write_source(tmp_path, "a", texts), write_source(tmp_path, "b", texts)], stage.Config()
    )
    plain = {name: value for name, value in step.parameters.items() if name != "max_removal"}
    seen = []
    for limit in (0.1, 1.0):
        phase = next(stage.plan(replace(step, parameters=plain, operations={"max_removal": limit, "workers": 3})))
        seen.append(phase)
    assert seen[0] == seen[1]
    with pytest.raises(StepFailedError, match=r"dedup\.max_removal = 0\.1 allows"):
        run_step(replace(step, parameters=plain, operations={"max_removal": 0.1}))
    assert run_step(replace(step, parameters=plain, operations={"max_removal": 1.0})).manifest.totals.rows == 10


def test_planning_brings_no_compiler() -> None:
    """The command line starts in a moment: numba is for the tasks."""
    code = "import sys, datakit.dedup.stage, datakit.dedup.minhash.signatures_stage; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_score_that_is_not_there_or_no_number_is_named(tmp_path: Path) -> None:
    source = write_source(tmp_path, "web", [text_of(1)], scores=[1.0])
    with pytest.raises(ColumnError, match=r"'web' has no column 'scroe'.*did you mean 'score'"):
        deduplicate(tmp_path, [source], stage.Config(prefer=("score:scroe",)))
    with pytest.raises(ColumnError, match="'web': column 'id' is string"):
        deduplicate(tmp_path, [source], stage.Config(prefer=("score:id",)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 0.0}, "threshold is 0.0"),
        ({"threshold": 1.2}, "threshold is 1.2"),
        ({"measure": "jacard"}, "did you mean 'jaccard'"),
        ({"prefer": ("longst",)}, "did you mean 'longest'"),
        ({"bands": 0}, "bands is 0; it must be from 1 to 100"),
        ({"ngram": 65}, "ngram is 65"),
        ({"max_removal": 2.0}, "max_removal is 2.0"),
        ({"max_comparisons": 0}, "max_comparisons is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_what_can(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stage.Config(**settings)


def test_signature_files_stand_beside_the_partitions(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", [text_of(i) for i in range(50)] + ["too short"], bits=2)
    signed = sign(source, signatures_stage.SignatureConfig())
    assert signed.manifest.counters["signatures/documents"] == 51
    assert signed.manifest.counters["signatures/too_short"] == 1
    assert [entry.path for entry in signed.manifest.partitions] == [entry.path for entry in source.manifest.partitions]
    for partition in source.manifest.partitions:
        documents, keys = (read_shard(f"{entry.directory}/{partition.path}") for entry in (source, signed))
        assert keys.schema.equals(signatures_stage.schema(14))
        assert keys["id"].equals(documents["id"])
        for text, skipped, first in zip(
            documents["text"].to_pylist(), keys["skipped"].to_pylist(), keys["band_00"].to_pylist(), strict=True
        ):
            assert skipped == (None if len(oracle.shingles(text)) >= 5 else "too_short")
            assert first == (oracle.band_keys(text, 14, 8, 5, 42)[0] if skipped is None else 0)


def test_ids_out_of_order_are_refused(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", [text_of(i) for i in range(5)])
    path = Path(source.directory, source.manifest.partitions[0].path)
    table = read_shard(str(path)).sort_by([("id", "descending")])
    path.unlink()
    with signatures_stage.ShardWriter(str(path), table.schema) as writer:
        writer.write(table)
    with pytest.raises(CorruptError, match="ids are not strictly ascending"):
        sign(source, signatures_stage.SignatureConfig())


def test_signatures_of_other_documents_are_refused(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(5)]
    step = dedup_step(tmp_path / "dedup", [write_source(tmp_path, "s", texts)], stage.Config())
    fewer = write_source(tmp_path / "other", "s", texts[:4])
    with pytest.raises(CorruptError, match="has other rows than"):
        run_step(replace(step, inputs=(fewer, step.inputs[1])))


def test_only_row_groups_with_clustered_documents_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datakit.storage.parquet.ROW_GROUP_ROWS", 10)
    base = text_of(1)
    source = write_source(tmp_path, "s", [base, edited(base, 1), *(text_of(i) for i in range(100, 300))])
    step = dedup_step(tmp_path / "dedup", [source], stage.Config())
    read: list[int] = []

    class Counting:
        """A shard that says which row groups are decoded."""

        def __init__(self, url: str) -> None:
            self.shard = open_shard(url)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None:
            self.shard.close()

        @property
        def metadata(self) -> FileMetaData:
            return self.shard.metadata

        def read_row_group(self, group: int, **how: Any) -> pa.Table:
            read.append(group)
            return self.shard.read_row_group(group, **how)

    monkeypatch.setattr("datakit.dedup.verification.cluster_shingles.open_shard", Counting)
    assert len(run_step(step).attributes()) == 1
    assert 2 <= len(read) <= 4, "of 21 row groups of text and 21 of signatures"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_copies_name_the_first_of_equal_ids(ids: list[tuple[int, int]]) -> None:
    pairs = np.array(ids, np.uint64).reshape(-1, 2)
    removed, kept = copies(pairs[:, 0].copy(), pairs[:, 1].copy())
    expected = {place: ids.index(one) for place, one in enumerate(ids) if ids.index(one) != place}
    assert dict(zip(removed.tolist(), kept.tolist(), strict=True)) == expected
