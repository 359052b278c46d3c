"""Implements `datakit train` and `datakit eval`: opens a run file and its data, checks the model's vocabulary, and
trains the run or evaluates a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from etils import epath

from datakit.errors import CheckpointError, UsageError
from datakit.storage import urls
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import checkpoint_folders, restore_newest
from datakit.trainer.config import Run, read_run_file
from datakit.trainer.data import Data, open_data
from datakit.trainer.evaluate import evaluate_all
from datakit.trainer.run_manifest import run_place
from datakit.trainer.train import Outcome, say_on_stderr, train, trainer_of, use_compilation_cache


def load_run(name_or_path: str | Path, root: str = "./data", overrides: Iterable[str] = ()) -> tuple[Run, Data]:
    """Return the run that a run file defines, and its opened data. Overrides such as `steps=20` or `model.hidden=64`
    replace values in the file. A model that sets no vocabulary gets the tokenizer's, rounded up. Raises RecipeError,
    UsageError, TokenizerError, LoaderError, and the errors of opening caches.
    """
    file = read_run_file(name_or_path, overrides)
    data = open_data(file.data_table, file.path, root)
    run = file.run(data.vocabulary)
    smallest = max(cache.contract.vocabulary_size for cache in data.caches.values())
    if run.model.vocabulary < smallest:
        raise UsageError(
            f"{file.path}: model.vocabulary is {run.model.vocabulary}, but the caches need {smallest}; "
            f"raise this setting, or remove it"
        )
    return run, data


def train_file(
    path: str | Path, root: str = "./data", overrides: Iterable[str] = (), say: Say = say_on_stderr
) -> Outcome:
    """Train the run that a run file defines, or return its outcome if it is already finished."""
    run, data = load_run(path, root, overrides)
    for note in data.notes:
        say(note)
    with data.loader() as loader:
        return train(
            run, loader, root, evaluations=data.evaluations, token_bytes=data.token_bytes, inputs=data.inputs, say=say
        )


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
    run, data = load_run(path, root, overrides)
    with data.loader() as loader:
        directory = run_place(root, run, loader.record()).directory
    found = _checkpoints(run, directory, checkpoint, say)
    if not data.evaluations(0):
        raise UsageError(
            f"{path}: nothing to evaluate; set validation_tokens for a component, or add a [data.evaluation.x] table"
        )
    use_compilation_cache(run)
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
        raise CheckpointError(f"no valid checkpoint in {' or '.join(places)}; train the run first")
    return found
