"""Chooses the checkpoint to resume from (the newest whose checksums match), and sets later ones aside by renaming their
markers. Also restores the checkpoint from which a run resumes or starts, or which `datakit eval` evaluates.
"""

from __future__ import annotations

import os

import jax
import xxhash
from etils import epath

from datakit.errors import CheckpointError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import SHOWN_DIGITS
from datakit.trainer.checkpoints.candidates import MARKER, SET_ASIDE, Candidate, Say, step_folders
from datakit.trainer.checkpoints.checkpoint import restore
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import is_first, meet

FOLDER = "checkpoints"


def checkpoint_folders(directory: str, temporary_root: str | None) -> tuple[str, str]:
    """Return the folders of a run's permanent and rolling checkpoints; without a temporary root, both are the same.
    Identical runs under two roots may share a temporary root, so the path of the rolling checkpoints contains a hash
    that identifies the run's directory.
    """
    permanent = urls.join(directory, FOLDER)
    if temporary_root is None:
        return permanent, permanent
    place = os.path.realpath(urls.local_path(directory)) if urls.is_local(directory) else directory
    digits = xxhash.xxh3_128_hexdigest(place.encode())[:SHOWN_DIGITS]
    name = urls.name(urls.parent(directory))
    return permanent, urls.join(urls.absolute(temporary_root), name, f"{urls.name(directory)}-{digits}", FOLDER)


def folders_of(place: str, temporary_root: str | None) -> list[str]:
    """Return the checkpoint folders of another run. `place` is the run's directory or the checkpoint folder in it."""
    directory = urls.absolute(place)
    directory = urls.parent(directory) if urls.name(directory) == FOLDER else directory
    return list(dict.fromkeys(checkpoint_folders(directory, temporary_root)))


def restore_newest(
    found: list[Candidate],
    like: Tree,
    say: Say,
    whole: bool = True,
    advice: str = "the warnings above say why",
) -> tuple[Tree, Candidate]:
    """Restore the newest readable state in `found` or, if `whole` is false, only those of its parts that are in `like`.
    Return the state and its checkpoint. Raises CheckpointError, with a message that ends with `advice`, if no
    checkpoint can be read.
    """
    cause: Exception | None = None
    for candidate in found:
        damage = candidate.damage(checksums=True)  # on every host, so that all hosts restore the same checkpoint
        if damage:
            say(f"warning: {candidate.path} is damaged ({damage}); trying an older one")
            continue
        try:
            return restore(candidate, like, whole), candidate
        except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
            raise  # the checkpoint does not fit this run or this machine, and neither would an older one
        except Exception as error:  # noqa: BLE001 - orbax raises errors of many types; an older checkpoint may work
            cause = error
            lines = str(error).strip().splitlines() or [""]
            say(f"warning: {candidate.path} cannot be read ({type(error).__name__}: {lines[0]}); trying an older one")
    raise unreadable(len(found), str(found[0].path.parent), advice) from cause


def unreadable(count: int, folder: str, advice: str) -> CheckpointError:
    """Return the error to raise if no checkpoint can be read."""
    return CheckpointError(f"no checkpoint in {folder} can be read ({count} tried); {advice}")


def set_aside(folders: list[str], step: int, say: Say) -> None:
    """Invalidate all checkpoints after `step`, the step at which the run resumes (-1: it starts afresh).

    Only the markers are renamed. If these checkpoints stayed valid, the next start would restore the newest of them.
    """
    meet("checkpoints are read")
    start = "afresh" if step < 0 else f"at step {step:,}"
    for number, path in committed(folders) if is_first() else []:
        if number > step:
            (path / MARKER).rename(path / SET_ASIDE)
            atomic.sync_directories([str(path)])
            say(f"warning: {path} is set aside: the run starts {start}")


def committed(folders: list[str]) -> list[tuple[int, epath.Path]]:
    """Return (step, path) of all checkpoints that have a marker, even if the marker or other files are damaged."""
    return [(step, path) for folder in folders for step, path in step_folders(folder) if (path / MARKER).exists()]
