"""Keeps the values that the fork server computes once and its children share copy-on-write.

`preloaded("datakit.tokenize.encoders.tokenizer:load", path)` returns the value that the fork server computed. Without a
fork server (in a test, inline, or under `spawn`) it computes and caches the value.
"""

from __future__ import annotations

from typing import Any

from datakit.engine.task import resolve

_VALUES: dict[tuple[str, ...], Any] = {}


def preloaded(function: str, *arguments: str) -> Any:
    """Return `function(*arguments)`, computed at most once per process and its forks."""
    key = (function, *arguments)
    if key not in _VALUES:
        _VALUES[key] = resolve(function)(*arguments)
    return _VALUES[key]
