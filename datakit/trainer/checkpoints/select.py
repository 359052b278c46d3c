"""Which checkpoint is taken: where a run's lie, the newest one that is whole, and what becomes of the others.

Whoever reads a checkpoint (a run that goes on, one that takes another's weights, `datakit eval`) does it through here.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import xxhash
from etils import epath

from datakit.errors import CheckpointError
from datakit.storage import urls
from datakit.storage.fingerprint import SHOWN_DIGITS
from datakit.trainer.checkpoints.checkpoint import MARKER, SET_ASIDE, Candidate, restore, step_folders
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import is_first, meet

FOLDER = "checkpoints"
Say = Callable[[str], None]


def checkpoint_folders(directory: str, temporary_root: str | None) -> tuple[str, str]:
    """(permanent, rolling) of the run in `directory`; the same where no temporary root is set.

    Runs of two roots may share a temporary root and be alike in all else, so the directory itself is part of the name.
    """
    permanent = urls.join(directory, FOLDER)
    if temporary_root is None:
        return permanent, permanent
    place = os.path.realpath(urls.local_path(directory)) if urls.is_local(directory) else directory
    digits = xxhash.xxh3_128_hexdigest(place.encode())[:SHOWN_DIGITS]
    name = urls.name(urls.parent(directory))
    return permanent, urls.join(urls.absolute(temporary_root), name, f"{urls.name(directory)}-{digits}", FOLDER)


def folders_of(place: str, temporary_root: str | None) -> list[str]:
    """Where checkpoints may lie of another run, named by its directory or by the folder of checkpoints in it."""
    directory = urls.absolute(place)
    directory = urls.parent(directory) if urls.name(directory) == FOLDER else directory
    return list(dict.fromkeys(checkpoint_folders(directory, temporary_root)))


def restore_newest(
    found: list[Candidate],
    like: Tree,
    say: Say,
    read: Callable[[Candidate, Tree], Tree] = restore,
    advice: str = "the warnings say why",
) -> tuple[Tree, Candidate]:
    """The newest state that can be read, in the shapes and shardings of `like`. Raises CheckpointError."""
    for candidate in found:
        damage = candidate.damage(checksums=True)  # on every host: all must take the same one
        if damage:
            say(f"warning: {candidate.path} is damaged ({damage}); taking an older one")
            continue
        try:
            return read(candidate, like), candidate
        except (ValueError, KeyError, OSError) as error:
            say(f"warning: {candidate.path} cannot be read ({type(error).__name__}: {error}); taking an older one")
    raise unreadable(len(found), str(found[0].path.parent), advice)


def unreadable(count: int, folder: str, advice: str) -> CheckpointError:
    """What is raised where there are checkpoints, but none of use."""
    return CheckpointError(f"none of the {count} checkpoints in {folder} can be read; {advice}")


def set_aside(folders: list[str], step: int, say: Say) -> None:
    """Let checkpoints beyond `step` no longer count: the run begins there (-1: afresh), and theirs is another course.

    Their files stay; only the marker gets another name. Else the next start would take them for the newest.
    """
    meet("checkpoints are read")
    begins = "afresh" if step < 0 else f"at step {step:,}"
    for number, path in committed(folders) if is_first() else []:
        if number > step:
            (path / MARKER).rename(path / SET_ASIDE)
            say(f"warning: {path} is set aside: the run begins {begins}")


def committed(folders: list[str]) -> list[tuple[int, epath.Path]]:
    """(step, path) of all that have a marker, be it readable or not, and whatever became of their files since."""
    return [(step, path) for folder in folders for step, path in step_folders(folder) if (path / MARKER).exists()]
