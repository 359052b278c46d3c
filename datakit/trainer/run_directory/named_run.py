"""Finds the run that `initialize_from` or `resume_from` names by its place in the root.

    initialize_from = "{root}/demo-train"                       the finished run with this name
    initialize_from = "{root}/demo-train/train-0123456789ab"    this run, finished or not

{root} stands for the command's --root, as in the `cache` of a component. The finished run must be the only one with its
name, so the choice never depends on dates: if there are several, the error lists them. Which one was found decides what
the new run is, so its name, relative to the root, enters the fingerprint; a root can be moved or copied.
"""

from __future__ import annotations

from typing import Any

from datakit.errors import UsageError
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.manifest import is_finished
from datakit.trainer import STAGE

ROOT = "{root}/"
SETTINGS = ("initialize_from", "resume_from")


def with_named_runs(tables: dict[str, Any], root: str) -> dict[str, Any]:
    """Return the tables of a run file in which each of SETTINGS that begins with {root}/ names the directory of a run.
    Raises UsageError if there is no such run, or if several finished runs have the name.
    """
    named = {name: tables[name] for name in SETTINGS if str(tables.get(name, "")).startswith(ROOT)}
    return {**tables, **{name: ROOT + _directory(place, root, name) for name, place in named.items()}}


def place_in(root: str, place: str) -> str:
    """Return the directory of a run. place: a value of one of SETTINGS."""
    return urls.join(root, place.removeprefix(ROOT)) if place.startswith(ROOT) else place


def _directory(place: str, root: str, setting: str) -> str:
    """Return the directory of a run, relative to the root."""
    inside = place.removeprefix(ROOT).strip("/")
    if urls.name(inside).startswith(f"{STAGE}-"):
        return inside
    folder = urls.join(urls.absolute(root), inside)
    runs = sorted(name for name in subdirectories(folder) if name.startswith(f"{STAGE}-"))
    finished = [name for name in runs if is_finished(urls.join(folder, name))]
    if len(finished) == 1:
        return urls.join(inside, finished[0])
    if finished:
        names = ", ".join(f'"{ROOT}{inside}/{name}"' for name in finished)
        raise UsageError(f"{setting} = {place!r}: several runs with this name are finished; name one of them: {names}")
    raise UsageError(
        f"{setting} = {place!r}: {folder} holds no finished run; first train it, or name the directory of a run"
    )
