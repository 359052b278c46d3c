"""Tests of the least-recently-used cache."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from datakit.cache.lru import LruCache


def test_least_recently_used_value_is_dropped() -> None:
    cache, loaded = LruCache[str, str](2), []

    def get(key: str) -> str:
        return cache.get(key, lambda: loaded.append(key) or key.upper())

    assert [get(key) for key in "abacba"] == list("ABACBA")
    assert loaded == ["a", "b", "c", "b", "a"]
    assert len(cache) == 2


def test_sizes_are_bounded_but_newest_value_stays() -> None:
    cache = LruCache[int, str](10, len)
    for key, size in enumerate((4, 4, 4, 30)):
        assert len(cache.get(key, lambda size=size: "x" * size)) == size
    assert len(cache) == 1


def test_concurrent_loads_of_a_key_share_the_first_value() -> None:
    cache, barrier = LruCache[str, object](2), threading.Barrier(4)

    def load() -> object:
        barrier.wait()  # until all four threads have missed
        return object()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cache.get("a", load), range(4)))
    assert len(set(map(id, found))) == 1
