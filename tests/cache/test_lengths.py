"""Tests of the files of document lengths."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from datakit.cache.reader import open_cache
from datakit.storage.atomic import hash_file


def test_lengths_file_matches_documents_list(small: Path) -> None:
    cache = open_cache(str(small))
    assert {shard.source for shard in cache.shards} == {"novels", "laws", "one"}
    for shard in cache.shards:
        listed = pq.read_table(small / f"{shard.path}.docs.parquet").column("tokens").to_numpy()
        assert (small / f"{shard.path}.lengths").read_bytes() == listed.astype("<u4").tobytes()
        assert (cache.document_lengths(shard.index) == listed).all()
        assert shard.files.lengths_xxh3 == hash_file(small / f"{shard.path}.lengths")[0]
