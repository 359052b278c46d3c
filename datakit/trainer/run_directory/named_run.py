"""Finds the directory that `initialize_from` or `resume_from` names.

    initialize_from = "{root}/demo-train"                       the finished run with this name
    initialize_from = "{root}/demo-train/train-0123456789ab"    this run, finished or not
    initialize_from = "../runs/demo-train/train-0123456789ab"   relative to the run file

{root} stands for the command's --root, as in the `cache` of a component. The finished run must be the only one with its
name, so the choice never depends on dates: if there are several, the error lists them. `other_run.py` decides how the
run that was found enters the fingerprint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datakit.errors import UsageError
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.manifest import is_finished
from datakit.trainer import STAGE

ROOT = "{root}/"
SETTINGS = ("initialize_from", "resume_from")


def with_named_runs(tables: dict[str, Any], root: str) -> dict[str, Any]:
    """Return the tables of a run file in which each of SETTINGS that begins with {root}/ names the directory of a run
    or of a checkpoint. Raises UsageError if there is no such run, or if several finished runs have the name.
    """
    named = {name: tables[name] for name in SETTINGS if str(tables.get(name, "")).startswith(ROOT)}
    return {**tables, **{name: ROOT + _directory(place, root, name) for name, place in named.items()}}


def with_absolute_places(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the tables of a run file in which each of SETTINGS that is a relative path has become an absolute one.
    folder: the run file's folder, to which the paths are relative.
    """
    given = {name: tables[name] for name in SETTINGS if isinstance(tables.get(name), str)}
    places = {name: place for name, place in given.items() if urls.is_local(place) and not place.startswith(ROOT)}
    absolute = {name: place.removeprefix("file://") for name, place in places.items()}
    return {**tables, **{name: str(folder / Path(place).expanduser()) for name, place in absolute.items()}}


def path_in(root: str, place: str) -> str:
    """Return a value for one of SETTINGS that names a directory: below {root} if it is in the root."""
    home = f"{urls.absolute(root)}/"
    return ROOT + place.removeprefix(home) if place.startswith(home) else place


def place_in(root: str, place: str) -> str:
    """Return the directory that a run starts from. place: a value of one of SETTINGS."""
    return urls.join(root, place.removeprefix(ROOT)) if place.startswith(ROOT) else place


def _directory(place: str, root: str, setting: str) -> str:
    """Return the directory of a run or of a checkpoint, relative to the root."""
    inside = place.removeprefix(ROOT).strip("/")
    if any(part.startswith(f"{STAGE}-") for part in inside.split("/")[1:]):
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
