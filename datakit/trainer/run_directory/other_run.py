"""Finds the checkpoints of the run that another run starts from, and names that run in the other's fingerprint.

    {root}/demo-train/train-0123456789ab                                  a run
    {root}/demo-train/train-0123456789ab/checkpoints/step-000001000       one of its checkpoints

A run's directory is named after its fingerprint, so the last folders of a path identify the run. The rest of the path
stays out of the name: it depends on where the root lies, on the working directory, and on how the path was written. A
rolling checkpoint has the same name as the permanent one of the same step, because both hold the same state. If the
directory has another name, e.g. because it is a copy, the markers of its checkpoints tell which run wrote them.

Cost: to name a run, nothing is read, unless its directory has another name.
"""

from __future__ import annotations

import os
import re

from etils import epath

from datakit.errors import CheckpointError
from datakit.storage import urls
from datakit.storage.fingerprint import SHOWN_DIGITS, short
from datakit.trainer import STAGE
from datakit.trainer.checkpoints.candidates import NAME, Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import FOLDER, folders_of
from datakit.trainer.run_directory.named_run import ROOT

DIGITS = f"[0-9a-f]{{{SHOWN_DIGITS}}}"
# The second group of digits is in the paths of rolling checkpoints (see `select.checkpoint_folders`).
PLACE = re.compile(
    rf"(?:.*/)?([^/]+)/{STAGE}-(?P<digits>{DIGITS})(?:-{DIGITS})?(?:/{FOLDER}(?:/(?P<step>{NAME.pattern}))?)?"
)


def identity_of(setting: str, place: str | None) -> str | None:
    """Return the name of the run or checkpoint that a setting names. place: its value. Raises CheckpointError if the
    directory is not named like that of a run, and holds no checkpoint.
    """
    if place is None:
        return None
    named = _named(place)
    if named is not None:
        step = f"/{FOLDER}/{named['step']}" if named["step"] else ""
        return f"{ROOT}{named[1]}/{STAGE}-{named['digits']}{step}"
    if place.startswith(ROOT):
        return place
    newest = checkpoints_at(setting, place, None, lambda _: None)[0]
    return f"{STAGE}-{newest.marker.run}" + (f"/{FOLDER}/{newest.path.name}" if _is_checkpoint(place) else "")


def checkpoints_at(setting: str, place: str, temporary_root: str | None, say: Say) -> list[Candidate]:
    """Return the checkpoints of the run in a directory, newest first, or only the checkpoint that `place` names. Raises
    CheckpointError if there is none, or if another run wrote them than the directory's name says.
    """
    folders, named = folders_of(place, temporary_root), _named(place)
    if _is_checkpoint(place):
        folders = [urls.absolute(place)]
        one = candidate_at(epath.Path(folders[0]), say)
        found = [one] if one else []
    else:
        found = candidates(folders, say)
    if not found:
        raise CheckpointError(f"{setting} = {place!r}: found no valid checkpoint in {' or '.join(folders)}")
    writers = {short(one.marker.run) for one in found}
    if named is not None and writers != {named["digits"]}:
        raise CheckpointError(
            f"{setting} = {place!r}: the checkpoints there were written by {STAGE}-{' and '.join(sorted(writers))}; "
            "give the directory the name of the run that wrote them"
        )
    return found


def _is_checkpoint(place: str) -> bool:
    return NAME.fullmatch(urls.name(urls.absolute(place))) is not None


def _named(place: str) -> re.Match[str] | None:
    """Return the parts of a path that identify a run; None if its folders are not named like those of a run."""
    return PLACE.fullmatch(os.path.normpath(place) if place.startswith(ROOT) else urls.absolute(place))
