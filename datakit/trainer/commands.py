"""Implements `datakit train` and `datakit eval`: opens a run file and its data, checks the model's vocabulary size,
and trains the model or evaluates a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from etils import epath

from datakit.errors import CheckpointError, LoaderError, NotFoundError, UsageError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import USE
from datakit.storage import urls
from datakit.storage.manifest import is_finished
from datakit.toml_config import check_idle
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import checkpoint_folders, committed, restore_newest
from datakit.trainer.config import STAGE, Run
from datakit.trainer.data import Data, Resolved, open_data, record_caches, recorded_caches
from datakit.trainer.evaluate import NO_LENGTHS, evaluate_all
from datakit.trainer.huggingface import initialize
from datakit.trainer.loop.compilation_cache import use_compilation_cache
from datakit.trainer.multihost import disagree, is_first
from datakit.trainer.run_directory.named_run import with_named_runs
from datakit.trainer.run_directory.run_code import other_changes
from datakit.trainer.run_directory.run_record import is_run, root_of, write_run_record
from datakit.trainer.run_file import RunFile, read_run_file
from datakit.trainer.run_manifest import run_place
from datakit.trainer.train import Outcome, say_on_stderr, train, trainer_of


def load_run(
    name_or_path: str | Path | RunFile,
    root: str = "./data",
    overrides: Iterable[str] = (),
    pinned: Mapping[str, Resolved] | None = None,
) -> tuple[Run, Data]:
    """Return the run that a run file defines or that a run's directory records, and its opened data. Overrides such as
    `steps=20` or `model.hidden=64` replace values in the file. Without `model.vocabulary`, the model gets the
    tokenizer's vocabulary size, rounded up to a multiple of 128. `pinned` gives, by dataset, the cache to use instead
    of the dataset's current cache. Raises RecipeError, UsageError, TokenizerError, LoaderError, and the errors of
    `open_cache`.
    """
    file = name_or_path if isinstance(name_or_path, RunFile) else read_run_file(name_or_path, overrides)
    file = replace(file, run_tables=with_named_runs(file.run_tables, root))
    data = open_data(file.data_table, file.path, root, pinned)
    run = file.run(data.vocabulary)
    smallest = max(cache.contract.vocabulary_size for cache in data.caches.values())
    hub = initialize.folder_of(run.initialize_from)
    if run.model.vocabulary < smallest:
        advice = "raise this setting, or remove it" if hub is None else "make caches with the model's own tokenizer"
        raise UsageError(
            f"{file.path}: model.vocabulary is {run.model.vocabulary}, but the caches need at least {smallest}; "
            f"{advice}"
        )
    if hub is not None:
        place = next(iter(data.caches.values())).tokenizer_url
        data = replace(data, notes=data.notes + initialize.check_tokenizer(hub, urls.read_bytes(place), place))
    return run, data


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


def caches_of(name_or_path: str | Path) -> Mapping[str, Resolved]:
    """Return the caches that the run in a directory began with, by dataset; empty for a run file. So the directory
    always stands for this run, whichever caches are current, and whichever other runs have the same settings.
    """
    return recorded_caches(urls.absolute(str(name_or_path))) if is_run(name_or_path) else {}


def require_same(name_or_path: str | Path, directory: str) -> None:
    """Raise UsageError if a run's directory is given, and its recorded settings now lead to another `directory`."""
    if is_run(name_or_path) and Path(directory).resolve() != Path(name_or_path).resolve():
        raise UsageError(
            f"{name_or_path}: with its recorded settings, the run would now be {directory}; a cache or the version of "
            "datakit has changed"
        )


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


def load_begun(
    file: RunFile, root: str, say: Say, *, finished: bool, pinned: Mapping[str, Resolved] | None = None
) -> tuple[Run, Data]:
    """Return a run and its data, as `load_run` does. If the run began before its datasets got their current caches, the
    earlier caches are used and a message is passed to `say`. finished: also consider finished runs that began with
    earlier caches.
    """
    run, data = load_run(file, root, pinned=pinned)
    if pinned or not data.resolved or _begun(run, directory := directory_of(run, data, root)):
        return run, data
    for other in sorted(Path(urls.local_path(urls.parent(directory))).glob(f"{STAGE}-*"), key=_age):
        recorded = recorded_caches(str(other))
        if not recorded or not _begun(run, str(other)) or (is_finished(str(other)) and not finished):
            continue
        try:
            earlier = load_run(file, root, pinned=recorded)
        except (NotFoundError, LoaderError) as error:
            say(f"{other} cannot go on: {error}")
            continue
        if directory_of(*earlier, root) == str(other):
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


def directory_of(run: Run, data: Data, root: str) -> str:
    """Return the directory of a run under `root`."""
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
