"""What the fork server holds for its children: values made once, shared copy-on-write.

`preloaded("datakit.tokenize.encoders.tokenizer:load", path)` gives the value that the server made, or makes it here (in
a test, inline, or under `spawn`) and keeps it.
"""

from __future__ import annotations

from typing import Any

from datakit.engine.task import resolve

_VALUES: dict[tuple[str, ...], Any] = {}


def preloaded(function: str, *arguments: str) -> Any:
    """The value of `function(*arguments)`, made at most once in a process and its forks."""
    key = (function, *arguments)
    if key not in _VALUES:
        _VALUES[key] = resolve(function)(*arguments)
    return _VALUES[key]
