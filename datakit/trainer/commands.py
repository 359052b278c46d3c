"""Implements `datakit train` and `datakit eval`: opens a run file and its data, checks the model's vocabulary size,
and trains the model or evaluates a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from etils import epath

from datakit.errors import CheckpointError, LoaderError, NotFoundError, UsageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.storage import urls
from datakit.storage.manifest import is_finished
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import checkpoint_folders, committed, restore_newest
from datakit.trainer.config import STAGE, Run, read_run_file
from datakit.trainer.data import Data, Resolved, open_data, record_caches, recorded_caches
from datakit.trainer.evaluate import evaluate_all
from datakit.trainer.multihost import disagree, is_first
from datakit.trainer.run_manifest import run_place
from datakit.trainer.train import Outcome, say_on_stderr, train, trainer_of, use_compilation_cache


def load_run(
    name_or_path: str | Path,
    root: str = "./data",
    overrides: Iterable[str] = (),
    pinned: Mapping[str, Resolved] | None = None,
) -> tuple[Run, Data]:
    """Return the run that a run file defines, and its opened data. Overrides such as `steps=20` or `model.hidden=64`
    replace values in the file. Without `model.vocabulary`, the model gets the tokenizer's vocabulary size, rounded up
    to a multiple of 128. `pinned` gives, by dataset, the cache to use instead of the dataset's current cache. Raises
    RecipeError, UsageError, TokenizerError, LoaderError, and the errors of `open_cache`.
    """
    file = read_run_file(name_or_path, overrides)
    data = open_data(file.data_table, file.path, root, pinned)
    run = file.run(data.vocabulary)
    smallest = max(cache.contract.vocabulary_size for cache in data.caches.values())
    if run.model.vocabulary < smallest:
        raise UsageError(
            f"{file.path}: model.vocabulary is {run.model.vocabulary}, but the caches need at least {smallest}; "
            f"raise this setting, or remove it"
        )
    return run, data


def train_file(
    path: str | Path, root: str = "./data", overrides: Iterable[str] = (), say: Say = say_on_stderr
) -> Outcome:
    """Train the model that a run file defines; if the run is already finished, return its outcome without training."""
    run, data = load_begun(path, root, list(overrides), say, finished=False)
    for note in data.notes:
        say(note)
    with data.loader() as loader, _lease(root, data, "datakit train", say):
        place = run_place(root, run, loader.record())
        if disagree(place.fingerprint):
            raise UsageError(
                f"{path}: the processes found different caches, because a dataset's cache changed while they "
                "started; start all processes again"
            )
        if is_first() and urls.is_local(place.directory) and not is_finished(place.directory):
            record_caches(place.directory, data.recorded())
        return train(
            run, loader, root, evaluations=data.evaluations, token_bytes=data.token_bytes, inputs=data.inputs, say=say
        )


@contextmanager
def _lease(root: str, data: Data, command: str, say: Say, place: str | None = None) -> Iterator[None]:
    """Keep the caches in the root from `datakit gc` while a command reads them, and until a training run has recorded
    them. place: the run or the checkpoint that the command reads. The lease also names this place, because a ferry's
    root does not expire while a lease names anything in it (`retention/ferry_roots.py`).
    """
    if not is_first() or not urls.is_local(root):
        yield
        return
    with Lease(urls.absolute(root), USE, command, say) as lease:
        lease.hold([*data.caches, *([place] if place else [])])
        lease.hold_finished(data.caches)
        yield


def load_begun(path: str | Path, root: str, overrides: list[str], say: Say, *, finished: bool) -> tuple[Run, Data]:
    """Return a run and its data, as `load_run` does. If the run began before its datasets got their current caches, the
    earlier caches are used and a message is passed to `say`. finished: also consider finished runs that began with
    earlier caches.
    """
    run, data = load_run(path, root, overrides)
    if not data.resolved or _begun(run, directory := _directory(run, data, root)):
        return run, data
    for other in sorted(Path(urls.local_path(urls.parent(directory))).glob(f"{STAGE}-*"), key=_age):
        pinned = recorded_caches(str(other))
        if not pinned or not _begun(run, str(other)) or (is_finished(str(other)) and not finished):
            continue
        try:
            earlier = load_run(path, root, overrides, pinned)
        except (NotFoundError, LoaderError) as error:
            say(f"{other} cannot go on: {error}")
            continue
        if _directory(*earlier, root) == str(other):
            for place, found in data.resolved.items():
                used = earlier[1].resolved[place]
                if used != found:
                    say(_newer(place, used.cache, found.cache))
            return earlier
    return run, data


def _newer(dataset: str, used: str, newest: str) -> str:
    return (
        f"the run goes on with {used}, with which it began\n"
        f"  {dataset} now stands for {urls.name(newest)}; to train on that cache, change the run's name"
    )


def _directory(run: Run, data: Data, root: str) -> str:
    with data.loader() as loader:
        return run_place(root, run, loader.record()).directory


def _begun(run: Run, directory: str) -> bool:
    return bool(committed(list(checkpoint_folders(directory, run.checkpoint.temporary_root))))


def _age(directory: Path) -> float:
    """Return a sort key by which the most recently changed directory comes first."""
    return -directory.stat().st_mtime


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
    run, data = load_begun(path, root, list(overrides), say, finished=True)
    directory = _directory(run, data, root)
    if not data.evaluations(0):
        raise UsageError(
            f"{path}: nothing to evaluate; set validation_tokens for a component, or add a [data.evaluation.x] table"
        )
    with _lease(root, data, "datakit eval", say, urls.absolute(checkpoint) if checkpoint else directory):
        found = _checkpoints(run, directory, checkpoint, say)
        use_compilation_cache(run)
        return _evaluated(run, data, found, devices, say)


def _evaluated(run: Run, data: Data, found: list[Candidate], devices: Sequence[Any] | None, say: Say) -> Evaluated:
    trainer = trainer_of(run, devices)
    with jax.set_mesh(trainer.mesh):
        parts = ("params", "model", *(("ema",) if run.optimizer.ema else ()))
        like = {name: trainer.like()[name] for name in parts}
        state, restored = restore_newest(found, like, say, whole=False)
        tags = data.evaluations(restored.marker.step)
        metrics = evaluate_all(trainer, state, tags, data.token_bytes, run.evaluation.batches)
    return Evaluated(str(restored.path), restored.marker.step, metrics)


def _checkpoints(run: Run, directory: str, checkpoint: str | None, say: Say) -> list[Candidate]:
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
