"""Composes the command that repeats a run, from the run's first event."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any

from datakit.engine.observe.event_tail import Event
from datakit.recipe import CATALOG


def command_of(started: Event | None) -> str:
    """Return the command that repeats a run; "" if the log does not say how the run was started.

    >>> command_of({"recipe": "my books.toml", "root": "/data", "options": {"workers": 4, "directory": "/home/ann"}})
    "cd /home/ann && datakit run 'my books.toml' --root /data --workers 4"
    """
    recipe, options = (started or {}).get("recipe"), (started or {}).get("options")
    if started is None or not isinstance(recipe, str) or not recipe or not isinstance(options, dict):
        return ""
    in_catalog = os.path.dirname(recipe) == str(CATALOG)
    name = os.path.basename(recipe).removesuffix(".toml") if in_catalog else recipe
    words = ["datakit", "run", name, "--root", str(started.get("root", "")), *_options(options)]
    directory = options.get("directory")
    place = f"cd {shlex.quote(directory)} && " if isinstance(directory, str) else ""
    return place + shlex.join(words)


def _options(options: dict[str, Any]) -> Iterator[str]:
    for name in ("workers", "ray", "until"):
        if isinstance(options.get(name), int | str):
            yield from (f"--{name}", str(options[name]))
    settings = options.get("settings")
    for setting in settings if isinstance(settings, list) else ():
        yield from ("--set", str(setting))
    for name in ("offline", "fresh"):
        if options.get(name) is True:
            yield f"--{name}"
