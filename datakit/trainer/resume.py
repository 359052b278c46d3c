"""Decides whether a run resumes from its newest checkpoint, continues another run (`resume_from`), takes another run's
weights (`initialize_from`), or starts afresh. A printed line names the choice. A run that has to start from another run
once more takes the same checkpoint again (`run_directory/origin.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from datakit.errors import CheckpointError, UsageError
from datakit.storage.manifest import is_finished
from datakit.trainer.checkpoints import select
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidates
from datakit.trainer.config import STAGE, Run
from datakit.trainer.device_feed import BatchSource
from datakit.trainer.huggingface import initialize
from datakit.trainer.models.weights import Tree
from datakit.trainer.multihost import is_first
from datakit.trainer.run_directory.named_run import place_in
from datakit.trainer.run_directory.origin import same_origin, write_origin
from datakit.trainer.run_directory.other_run import checkpoints_at
from datakit.trainer.run_manifest import RunPlace, root_of
from datakit.trainer.step import Trainer

START_AFRESH = "set checkpoint.load = false to start afresh"


@dataclass(frozen=True)
class Start:
    """The state that a run starts with, and values from the marker of the restored checkpoint."""

    state: Tree
    step: int
    counts: dict[str, int]
    norms: dict[str, float]
    folders: tuple[str, str]  # the folders of the permanent and of the rolling checkpoints
    resumed_from: int | None  # the step at which training resumes; None: the run starts at step 0
    origin: dict[str, Any] | None  # identity of another run's checkpoint, if this run started from one


def begin(run: Run, place: RunPlace, trainer: Trainer, source: BatchSource, say: Say) -> Start:
    """Find and restore the state to start with. Raises CheckpointError or UsageError, or the data source's own error
    if, at any step before the checkpoint, the mixture differs from that of the checkpointed run.
    """
    folders = select.checkpoint_folders(place.directory, run.checkpoint.temporary_root)
    places = list(dict.fromkeys(folders))
    found = candidates(places, say)
    if any(one.marker.run != place.fingerprint for one in found):
        raise CheckpointError(f"{folders[1]} holds checkpoints of another run; move them to another directory")
    if run.checkpoint.load is False:
        select.set_aside(places, -1, say)
    elif found:
        start = _resume(found, trainer, source, folders, say)
        select.set_aside(places, start.step, say)
        return start
    damaged = select.committed(places)
    if damaged and run.checkpoint.load is not False:
        raise select.unreadable(len(damaged), " or ".join(places), START_AFRESH)
    if run.checkpoint.load and run.resume_from is None:
        raise CheckpointError(
            f"checkpoint.load is true, but there is no valid checkpoint in {' or '.join(places)}; check the run's name "
            "and settings (a change to the model, optimizer, steps, seed or mixture makes it a different run), or "
            "remove checkpoint.load to start afresh"
        )
    if run.checkpoint.load is None and run.resume_from is None:
        _name_unfinished(place, say)
    start = first_start(run, place, trainer, source, folders, say)
    if is_first():
        write_origin(place.directory, start.origin)
    return start


def first_start(
    run: Run, place: RunPlace, trainer: Trainer, source: BatchSource, folders: tuple[str, str], say: Say
) -> Start:
    """Return the state with which a run starts that has no checkpoint of its own: that of the run in `resume_from`, or
    a fresh one. Raises the errors of `begin`.
    """
    if run.resume_from is not None:
        others = _of_another(run, place, "resume_from", say)
        reached = others[0].marker.step
        if reached > run.steps:
            raise UsageError(
                f"resume_from = {run.resume_from!r} is at step {reached:,}, but this run has only "
                f"{run.steps:,} steps; raise `steps`, or resume from a run with fewer steps"
            )
        return _resume(others, trainer, source, folders, say, "resume_from")
    return _start_fresh(run, place, trainer, folders, say)


def _name_unfinished(place: RunPlace, say: Say) -> None:
    """Report an unfinished run of the same name that has checkpoints: a setting may have been changed by accident."""
    others = (other for other in Path(place.directory).parent.glob(f"{STAGE}-*") if str(other) != place.directory)
    found = [
        other for other in others if select.committed([str(other / select.FOLDER)]) and not is_finished(str(other))
    ]
    if found:
        newest = max(found, key=lambda other: other.stat().st_mtime)
        say(f"{newest} is an unfinished run with other settings; to continue it, set resume_from to this directory")


def refuse_afresh(run: Run, directory: str) -> None:
    """Raise UsageError if a finished run is asked to start afresh, because a finished run is never trained again."""
    if run.checkpoint.load is False:
        raise UsageError(
            f"{directory} is finished, so checkpoint.load = false cannot start it afresh; move the directory away to "
            "train again, or remove checkpoint.load"
        )


def _of_another(run: Run, place: RunPlace, setting: str, say: Say) -> list[Candidate]:
    """Return the checkpoints, newest first, of the run that a setting names, or only the one that it names, or with
    which this run has started before.
    """
    there = place_in(root_of(place), getattr(run, setting))
    return same_origin(place.directory, checkpoints_at(setting, there, run.checkpoint.temporary_root, say))


def _resume(
    found: list[Candidate], trainer: Trainer, source: BatchSource, folders: tuple[str, str], say: Say, setting: str = ""
) -> Start:
    """Continue from the newest readable checkpoint of this run or, if `setting` is given, of the run that it names."""
    advice = f"name another run in {setting}" if setting else START_AFRESH
    state, candidate = select.restore_newest(found, trainer.like(), say, advice=advice)
    marker = candidate.marker
    for change in source.verify(marker.mixture, marker.step):
        say(f"the mixture changes from here on: {change}")
    say(f"resumed from step {marker.step:,} of {candidate.path}")
    origin = {"by": setting, **candidate.named()} if setting else marker.origin
    return Start(state, marker.step, marker.counts, marker.norms, folders, marker.step, origin)


def _start_fresh(run: Run, place: RunPlace, trainer: Trainer, folders: tuple[str, str], say: Say) -> Start:
    if run.initialize_from is None:
        state, origin = trainer.fresh(run.seed), None
        say("fresh start")
    elif (hub := initialize.folder_of(run.initialize_from)) is not None:
        state, origin = _with_weights_of_hub(hub, run, trainer, say)
    else:
        state, origin = _with_weights_of_run(run, place, trainer, say)
    norms = trainer.measure_norms(state["params"])
    return Start(state, 0, {"sequences": 0, "tokens": 0}, norms, folders, None, origin)


def _with_weights_of_run(run: Run, place: RunPlace, trainer: Trainer, say: Say) -> tuple[Tree, dict[str, Any]]:
    """Return a fresh state with the weights of another run, and the identity of their checkpoint."""
    setting = "initialize_from"
    found, like = _of_another(run, place, setting, say), trainer.like()
    wanted = {name: like[name] for name in ("params", "model")}
    weights, candidate = select.restore_newest(found, wanted, say, False, f"name another run in {setting}")
    state = _averaging(trainer.fresh(run.seed) | weights)
    say(f"fresh start with the weights of step {candidate.marker.step:,} of {candidate.path}")
    return state, {"by": setting, **candidate.named()}


def _with_weights_of_hub(folder: Path, run: Run, trainer: Trainer, say: Say) -> tuple[Tree, dict[str, Any]]:
    """Return a fresh state with the weights of a model of the hub, and the hashes of its files."""
    initialize.check_model(folder, run.kind, run.model)
    state = trainer.fresh(run.seed)
    state["params"], origin = initialize.load_weights(folder, state["params"], run.model)
    say(f"fresh start with the weights of {folder}")
    return _averaging(state), origin


def _averaging(state: Tree) -> Tree:
    """Let the averaged weights, if there are any, start as copies of the weights in `state`."""
    if "ema" in state:
        weights = {name: state[name] for name in ("params", "model")}
        state["ema"] = jax.tree.map(jnp.copy, weights)  # copies: a step donates all buffers, so none may be shared
    return state
