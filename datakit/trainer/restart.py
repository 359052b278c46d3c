"""Where a run begins: at its own newest checkpoint, at another run's, or afresh. One line always says which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datakit.errors import CheckpointError, UsageError
from datakit.storage import urls
from datakit.trainer.batches import BatchSource
from datakit.trainer.checkpoint import Candidate, candidates, restore_newest, restore_weights, set_aside
from datakit.trainer.config import Run
from datakit.trainer.step import Trainer, measured_norms
from datakit.trainer.weights import Tree

FOLDER = "checkpoints"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """The state that a run begins with, and what its checkpoint said."""

    state: Tree
    step: int
    counts: dict[str, int]
    norms: dict[str, float]
    folders: tuple[str, str]  # for permanent and for rolling checkpoints
    resumed_from: int | None


def begin(run: Run, trainer: Trainer, source: BatchSource, directory: str, mixture: dict[str, Any], say: Say) -> Start:
    """See the module. Raises CheckpointError, and what the source raises for a changed mixture."""
    folders = checkpoint_folders(run, directory)
    found = candidates(list(dict.fromkeys(folders)), say)
    fingerprint = run.fingerprint(mixture)
    own = [one for one in found if one.marker.run == fingerprint]
    if len(own) < len(found):
        raise CheckpointError(f"{folders[1]} holds checkpoints of another run; give this one a folder of its own")
    if run.checkpoint.load is False:
        set_aside(own, -1, say)
        return _afresh(run, trainer, folders, say)
    if not own and run.resume_from is not None:
        own = candidates([_checkpoints_of(run.resume_from)], say)
        if not own:
            raise CheckpointError(f"resume_from = {run.resume_from!r}: no valid checkpoint is there")
        if own[0].marker.step > run.steps:
            raise UsageError(
                f"resume_from = {run.resume_from!r} is at step {own[0].marker.step:,}, and this run has {run.steps:,} "
                "steps; give it more, or resume from an earlier run"
            )
        return _resume(own, trainer, source, folders, say)
    if own:
        start = _resume(own, trainer, source, folders, say)
        set_aside(own, start.step, say)
        return start
    if run.checkpoint.load:
        places = " or ".join(dict.fromkeys(folders))
        raise CheckpointError(
            f"checkpoint.load is true, but there is no valid checkpoint in {places}; check the run's name and settings "
            "(any change of its content is another run), or leave load out to start afresh"
        )
    return _afresh(run, trainer, folders, say)


def checkpoint_folders(run: Run, directory: str) -> tuple[str, str]:
    """(permanent, rolling); the same where no temporary root is set."""
    permanent = urls.join(directory, FOLDER)
    root = run.checkpoint.temporary_root
    if root is None:
        return permanent, permanent
    base = urls.absolute(root)
    return permanent, urls.join(base, run.name, urls.name(directory), FOLDER)


def _checkpoints_of(place: str) -> str:
    return urls.absolute(place) if urls.name(place) == FOLDER else urls.join(urls.absolute(place), FOLDER)


def _resume(found: list[Candidate], trainer: Trainer, source: BatchSource, folders: tuple[str, str], say: Say) -> Start:
    restored = restore_newest(found, trainer.like(), say)
    if restored is None:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {found[0].path.parent} can be read; set checkpoint.load = false "
            "to start afresh"
        )
    state, candidate = restored
    marker = candidate.marker
    for change in source.verify(marker.mixture, marker.step):
        say(f"the mixture changes from here on: {change}")
    say(f"resumed from step {marker.step:,} of {candidate.path}")
    return Start(state, marker.step, marker.counts, marker.norms, folders, marker.step)


def _afresh(run: Run, trainer: Trainer, folders: tuple[str, str], say: Say) -> Start:
    state = trainer.fresh(run.seed)
    if run.initialize_from is not None:
        found = candidates([_checkpoints_of(run.initialize_from)], say)
        if not found:
            raise CheckpointError(f"initialize_from = {run.initialize_from!r}: no valid checkpoint is there")
        state |= restore_weights(found[0], {name: state[name] for name in ("params", "model")})
        say(f"fresh start with the weights of step {found[0].marker.step:,} of {found[0].path}")
    else:
        say("fresh start")
    norms = measured_norms(trainer, state["params"])
    return Start(state, 0, {"sequences": 0, "tokens": 0}, norms, folders, None)
