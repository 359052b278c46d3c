"""Records in a run's directory from which checkpoint of another run it started, so that a repeat takes the same one.

    origin.json    {"by": "resume_from", "checkpoint": <path>, "step": 8, "marker": <hash>, "format": ...}

A run that another run starts from may go on and save further checkpoints. If the newest one were chosen each time, a
run that is started again before its own first checkpoint would start with other weights than before, under the same
fingerprint. The hash of the marker identifies the checkpoint, because the marker holds the hashes of all of its files.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from etils import epath

from datakit.errors import CheckpointError, CorruptError, NotFoundError
from datakit.storage import atomic, urls
from datakit.storage.json_data import decode
from datakit.trainer.checkpoints.candidates import Candidate, candidate_at

FILE_NAME = "origin.json"
FORMAT = "datakit.origin/1"


class Origin(msgspec.Struct, frozen=True):
    """A checkpoint of another run. by: the setting that names it. marker: the hash of its marker."""

    by: str
    checkpoint: str
    step: int
    marker: str
    format: str = FORMAT


def write_origin(directory: str, origin: dict[str, Any] | None) -> None:
    """Record the origin of a run's first state, as `resume.Start` has it, if it is a checkpoint of another run."""
    if origin is None or "checkpoint" not in origin:
        return
    content = msgspec.json.encode(msgspec.convert(origin, Origin))
    os.makedirs(urls.local_path(directory), exist_ok=True)
    atomic.replace_bytes(msgspec.json.format(content, indent=1) + b"\n", urls.join(directory, FILE_NAME))


def recorded_origin(directory: str) -> Origin | None:
    """Return the recorded origin; None if the run has not started from another run yet. Raises CorruptError."""
    url = urls.join(directory, FILE_NAME)
    try:
        return decode(urls.read_bytes(url), Origin)
    except NotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} cannot be read: {error}; move {directory} away to start the run anew") from error


def same_origin(directory: str, found: list[Candidate]) -> list[Candidate]:
    """Return, of the checkpoints that a run may start from, the one from which it started before; if it never started,
    all of them. Raises CheckpointError if that checkpoint is gone or has changed.
    """
    origin = recorded_origin(directory)
    if origin is None:
        return found
    recorded = candidate_at(epath.Path(origin.checkpoint), lambda _: None)
    for one in [*found, *([recorded] if recorded else [])]:
        if one.marker.step == origin.step and one.named()["marker"] == origin.marker:
            return [one]
    raise CheckpointError(
        f"{directory} started from step {origin.step:,} in {origin.checkpoint}, which is gone or has changed; put this "
        f"checkpoint back or, to start from another one, move {directory} away"
    )
