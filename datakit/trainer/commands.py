"""Implements `datakit train` and `datakit eval`: trains the model that a run file defines, or evaluates a checkpoint,
while the caches that it reads are kept from `datakit gc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from etils import epath

from datakit.errors import CheckpointError, UsageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.storage import urls
from datakit.storage.manifest import is_finished
from datakit.toml_config import check_idle
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import checkpoint_folders, restore_newest
from datakit.trainer.config import Run
from datakit.trainer.data import Data, Resolved, record_caches
from datakit.trainer.evaluation.evaluate import NO_LENGTHS, evaluate_all
from datakit.trainer.load_run import caches_of, directory_of, load_begun, require_same
from datakit.trainer.loop.compilation_cache import use_compilation_cache
from datakit.trainer.multihost import disagree, is_first
from datakit.trainer.run_directory.named_run import with_named_runs
from datakit.trainer.run_directory.run_code import other_changes
from datakit.trainer.run_directory.run_record import root_of, write_run_record
from datakit.trainer.run_file import RunFile, read_run_file
from datakit.trainer.run_manifest import run_place
from datakit.trainer.train import Outcome, say_on_stderr, train, trainer_of


def train_file(
    path: str | Path, root: str = "./data", overrides: Iterable[str] = (), say: Say = say_on_stderr
) -> Outcome:
    """Train the model that a run file defines, or go on with the run in a directory. If the run is already finished,
    return its outcome without training. Raises UsageError if a run's directory is given without other settings, and its
    recorded settings no longer lead to this directory.
    """
    overrides = list(overrides)
    only = None if other_changes(overrides) else path
    return train_run_file(read_run_file(path, overrides), root_of(path, root), say, caches_of(path), only)


def train_run_file(
    file: RunFile,
    root: str,
    say: Say = say_on_stderr,
    pinned: Mapping[str, Resolved] | None = None,
    only: str | Path | None = None,
) -> Outcome:
    """Train as `train_file` does, with a run file that has been read. pinned: see `load_run`. only: see
    `require_same`; None: the run may be any.
    """
    run, data = load_begun(file, root, say, finished=False, pinned=pinned)
    for note in data.notes:
        say(note)
    with data.loader() as loader, lease_caches(root, data, "datakit train", say):
        place = run_place(root, run, loader.record())
        if only is not None:
            require_same(only, place.directory)
        if disagree(place.fingerprint):
            raise UsageError(
                f"{file.path}: the processes found different caches, because a dataset's cache changed while they "
                "started; start all processes again"
            )
        return train(
            run,
            loader,
            root,
            evaluations=data.evaluations,
            other_lengths=data.other_lengths,
            token_bytes=data.token_bytes,
            inputs=data.inputs,
            record=partial(_record, file, data, root),
            say=say,
        )


def _record(file: RunFile, data: Data, root: str, directory: str) -> None:
    """Record in the directory of an unfinished run its caches and its settings."""
    if is_finished(directory):
        return
    record_caches(directory, data.recorded())
    tables = with_named_runs(file.run_tables, root)  # another run may get the same name later
    write_run_record(directory, file.path, tables, file.data_table)


@contextmanager
def lease_caches(root: str, data: Data, command: str, say: Say, place: str | None = None) -> Iterator[None]:
    """Keep the caches in the root from `datakit gc` while a command reads them, and until a training run has recorded
    them. place: the run or the checkpoint that the command reads. The lease also names this place, because a ferry's
    root does not expire while a lease names anything in it (`retention/ferry_roots.py`).
    """
    if not is_first() or not urls.is_local(root):
        yield
        return
    with Lease(urls.absolute(root), USE, command, say) as held:
        held.hold([*data.caches, *([place] if place else [])])
        held.hold_finished(data.caches)
        yield


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint's path, its training step, and its metrics by name."""

    checkpoint: str
    step: int
    figures: dict[str, float]  # the metrics; the field's name is also the key in the command's JSON output


def evaluate_file(
    path: str | Path,
    root: str = "./data",
    checkpoint: str | None = None,
    overrides: Iterable[str] = (),
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
) -> Evaluated:
    """Evaluate a run's newest checkpoint, or the one in directory `checkpoint`, on the run file's validation sets.
    Raises CheckpointError if there is no valid checkpoint and UsageError if there is no validation set.
    """
    root, overrides = root_of(path, root), list(overrides)
    run, data = load_begun(read_run_file(path, overrides), root, say, finished=True, pinned=caches_of(path))
    directory = directory_of(run, data, root)
    if not other_changes(overrides):
        require_same(path, directory)
    if not data.evaluations(0):
        raise UsageError(
            f"{path}: nothing to evaluate; set validation_tokens for a component, or add a [data.evaluation.x] table"
        )
    with lease_caches(root, data, "datakit eval", say, urls.absolute(checkpoint) if checkpoint else directory):
        found = checkpoints_of(run, directory, checkpoint, say)
        use_compilation_cache(run.compilation_cache, say)
        return _evaluated(run, data, found, devices, say)


def _evaluated(run: Run, data: Data, found: list[Candidate], devices: Sequence[Any] | None, say: Say) -> Evaluated:
    trainer = trainer_of(run, devices)
    with jax.set_mesh(trainer.mesh):
        parts = ("params", "model", *(("ema",) if run.optimizer.ema else ()))
        like = {name: trainer.like()[name] for name in parts}
        state, restored = restore_newest(found, like, say, whole=False)
        step = restored.marker.step
        lengths = data.other_lengths(step)
        if not lengths:
            check_idle("evaluation", run.evaluation, [{"every_length": "if all sequences have the same length"}])
        others = lengths if run.evaluation.every_length else NO_LENGTHS
        tags, limit = data.evaluations(step), run.evaluation.batches
        metrics = evaluate_all(trainer, state, tags, data.token_bytes, limit, others, run.evaluation.capacity_factors)
    return Evaluated(str(restored.path), restored.marker.step, metrics)


def checkpoints_of(run: Run, directory: str, checkpoint: str | None, say: Say) -> list[Candidate]:
    """Return only the requested checkpoint, or, if `checkpoint` is None, all checkpoints of the run, newest first."""
    places = list(dict.fromkeys(checkpoint_folders(directory, run.checkpoint.temporary_root)))
    if checkpoint is None:
        found = candidates(places, say)
    else:
        places = [urls.absolute(checkpoint)]
        named = candidate_at(epath.Path(places[0]), say)
        found = [named] if named else []
    if not found:
        raise CheckpointError(f"no valid checkpoint in {' or '.join(places)}; run `datakit train` first")
    return found
