"""Keeps recently used values in memory up to a total size, and drops the least recently used ones first. Thread-safe.

Use `LruCache` instead of decorating a method with `functools.lru_cache`. The decorator's cache would keep an instance
alive, and the files of the instance open, as long as the cache holds a result of the method for this instance.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Keeps values whose sizes add up to at most `limit`; the value used last is kept even if it alone exceeds `limit`.
    `size_of` returns the size of a value; by default, every value has size 1.
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit, self._size_of = limit, size_of
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key, load: Callable[[], Value]) -> Value:
        """Return the value of `key`; if it is not cached, call `load` and cache the result.
        `load` runs outside the lock, so two threads may load the same value. Both get the result that is stored first.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        loaded = load()
        with self._lock:
            value = self._values.setdefault(key, loaded)
            self._values.move_to_end(key)
            if value is loaded:
                self._size += self._size_of(value)
            while self._size > self._limit and len(self._values) > 1:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
            return value
