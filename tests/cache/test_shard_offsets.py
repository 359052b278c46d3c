"""Tests of the positions of shards in the whole cache."""

from __future__ import annotations

from pathlib import Path

from datakit.cache.reader import open_cache
from datakit.validate.intact import require_intact
from tests.support.caches import reference_tokens


def test_shards_know_their_position_in_the_cache(small: Path) -> None:
    cache, expected = open_cache(str(small)), reference_tokens(small)
    assert {shard.source for shard in cache.shards} == {"novels", "laws", "one"}
    assert sum(shard.tokens for shard in cache.shards) == cache.tokens
    assert sum(shard.rows for shard in cache.shards) == cache.documents_count
    for shard in cache.shards:
        stop = shard.token_start + shard.tokens
        assert (cache.read(shard.token_start, stop) == expected[shard.token_start : stop]).all()
    assert require_intact(cache) > 0
