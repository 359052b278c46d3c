"""Tests of the totals in a cache's manifest."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datakit.cache.contract import Contract
from datakit.cache.layout import ShardFiles
from datakit.cache.reader import open_cache
from datakit.cache.written_shards import WrittenShard, cache_details
from tests.support.caches import make_cache
from tests.support.partitions import words


def test_manifest_has_frequent_tokens_and_versions(tmp_path: Path) -> None:
    cache = open_cache(str(make_cache(tmp_path, {"web": words(1, 300)}, bits=2)))
    counts = np.bincount(cache.read(0, cache.tokens))
    frequent = cache.details.frequent
    assert len(frequent) == 32
    assert [count for _, count in frequent] == sorted((count for _, count in frequent), reverse=True)
    assert all(0 <= counts[token] - count <= 4 * 2 for token, count in frequent)
    assert frequent[0] == (int(counts.argmax()), int(counts.max()))
    assert cache.details.sources["web"].frequent == frequent
    assert cache.contract.encoder_version
    assert (cache.contract.fallback, cache.contract.long_texts) == ("", "parts")


class Report(WrittenShard, frozen=True, weakref=True):
    """A report whose end can be noticed."""


def test_reports_of_many_shards_are_not_in_memory_together() -> None:
    files = ShardFiles(1, "0" * 32, 1, "0" * 32, "0" * 32)
    alive: list[weakref.ref[Report]] = []

    def reports(count: int) -> Iterator[WrittenShard]:
        for number in range(count):
            made = Report(
                f"s{number % 2}", 10, None, None, 0, f"shard-{number}", 2, 30, 60, "0" * 32, {"16": 2},
                {"5": 7, str(100 + number): 1}, files,
            )  # fmt: skip
            alive.append(weakref.ref(made))
            yield made
            del made
            assert sum(one() is not None for one in alive) <= 1

    details = cache_details(reports(40), Contract("0" * 64, "fastokens", 300, None, None, []))
    assert len(details.shards) == 40
    assert details.lengths == {"16": 80}
    assert details.frequent[:3] == [(5, 280), (100, 1), (101, 1)]
    assert details.sources["s1"].frequent[:2] == [(5, 140), (101, 1)]
    assert (details.sources["s0"].documents, details.sources["s0"].tokens) == (40, 600)
