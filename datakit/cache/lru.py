"""The last few values that were asked for, by their keys; for many threads.

Two threads may read the same value at once: that is a waste, no error, and nobody waits while another reads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Kept:
    """See the module. Keeps `most` values."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[Any, Any](), threading.Lock()

    def get(self, key: Any, read: Callable[[], Any]) -> Any:
        """The value under `key`, read if it is not here."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = read()
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
