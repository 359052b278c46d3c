"""Keeps values (such as tokenizers) that the fork server computes once and that its children share copy-on-write.

`preloaded("datakit.tokenize.encoders.tokenizer:load_for_tasks", path)` returns the value that the fork server computed.
In a process that no fork server has forked (for example, in a test), the call computes the value and caches it.
"""

from __future__ import annotations

from typing import Any

from datakit.engine.task import resolve

_VALUES: dict[tuple[str, ...], Any] = {}


def preloaded(function: str, *arguments: str) -> Any:
    """Return `function(*arguments)`, computed on the first call unless the process inherited the value."""
    key = (function, *arguments)
    if key not in _VALUES:
        _VALUES[key] = resolve(function)(*arguments)
    return _VALUES[key]
