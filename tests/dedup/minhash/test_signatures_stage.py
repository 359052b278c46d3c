"""Signature files have the rows of the normalized partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.dedup.minhash import signatures_stage
from datakit.errors import CorruptError
from datakit.storage.parquet import read_shard
from tests.support.dedup import dedup_oracle as oracle
from tests.support.dedup.dedup_inputs import sign, write_source
from tests.support.dedup.made_up_texts import text_of


def test_signature_files_match_the_partitions(tmp_path: Path) -> None:
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


def test_ids_out_of_order_are_rejected(tmp_path: Path) -> None:
    source = write_source(tmp_path, "s", [text_of(i) for i in range(5)])
    path = Path(source.directory, source.manifest.partitions[0].path)
    table = read_shard(str(path)).sort_by([("id", "descending")])
    path.unlink()
    with signatures_stage.ShardWriter(str(path), table.schema) as writer:
        writer.write(table)
    with pytest.raises(CorruptError, match="ids are not strictly ascending"):
        sign(source, signatures_stage.SignatureConfig())
