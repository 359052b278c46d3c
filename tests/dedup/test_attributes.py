"""Attribute files describe every removal, in one file per partition."""

from __future__ import annotations

from pathlib import Path

from datakit.dedup.attributes import SCHEMA
from datakit.storage.ids import partition_range
from datakit.storage.parquet import read_shard
from tests.support.dedup import dedup_oracle as oracle
from tests.support.dedup.dedup_inputs import deduplicate, id_of, write_source
from tests.support.dedup.made_up_texts import check_conservation, edited, removals, text_of


def test_near_duplicates_name_retained_document_and_similarity(tmp_path: Path) -> None:
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
        assert len(text_by_id[row["representative_id"]]) >= len(text_by_id[identity]), "the longest document stays"
    check_conservation(result)


def test_copies_of_fuzzy_duplicates_share_their_representative(tmp_path: Path) -> None:
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


def test_every_partition_has_a_sorted_file(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(30)]
    sources = [write_source(tmp_path, "a", texts[:20], bits=3), write_source(tmp_path, "b", texts[15:], bits=1)]
    result = deduplicate(tmp_path, sources)
    assert [partition.path for partition in result.manifest.partitions] == [
        *(f"data/a/part-{i:05d}-of-00008.parquet" for i in range(8)),
        *(f"data/b/part-{i:05d}-of-00002.parquet" for i in range(2)),
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
