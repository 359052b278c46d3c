"""`datakit train` and `datakit eval` as functions: from a run file to a finished run, or to metrics of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from etils import epath

from datakit.errors import CheckpointError, UsageError
from datakit.storage import urls
from datakit.trainer.checkpoints.checkpoint import Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import checkpoint_folders, restore_newest
from datakit.trainer.config import Run, read_run_file
from datakit.trainer.data import Data, open_data
from datakit.trainer.evaluate import evaluate_all
from datakit.trainer.run_manifest import run_place
from datakit.trainer.train import Outcome, say_on_stderr, train, trainer_of, use_compilation_cache


def load_run(name_or_path: str | Path, root: str = "./data", overrides: Iterable[str] = ()) -> tuple[Run, Data]:
    """Return the run of a run file and its opened data; `steps=20`, `model.hidden=64`, ... override values.

    A model without a vocabulary gets the tokenizer's. Raises RecipeError, UsageError and the errors of the caches.
    """
    file = read_run_file(name_or_path, overrides)
    data = open_data(file.data_table, file.path, root)
    run = file.run(data.vocabulary)
    smallest = max(cache.contract.vocabulary_size for cache in data.caches.values())
    if run.model.vocabulary < smallest:
        raise UsageError(
            f"{file.path}: model.vocabulary is {run.model.vocabulary}, but the caches need {smallest}; "
            f"raise it, or leave it out"
        )
    return run, data


def train_file(
    path: str | Path, root: str = "./data", overrides: Iterable[str] = (), say: Say = say_on_stderr
) -> Outcome:
    """Train the run of a run file to its end. A finished run is returned without training."""
    run, data = load_run(path, root, overrides)
    for note in data.notes:
        say(note)
    with data.loader() as loader:
        return train(
            run, loader, root, evaluations=data.evaluations, token_bytes=data.token_bytes, inputs=data.inputs, say=say
        )


@dataclass(frozen=True)
class Evaluated:
    """Metrics of a checkpoint: its path, its training step, and the values by name."""

    checkpoint: str
    step: int
    figures: dict[str, float]  # the key in the command's JSON output


def evaluate_file(
    path: str | Path,
    root: str = "./data",
    checkpoint: str | None = None,
    overrides: Iterable[str] = (),
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
) -> Evaluated:
    """Evaluate the newest checkpoint of a run, or the one in directory `checkpoint`, on the file's validation sets.

    Raises CheckpointError if there is no valid checkpoint and UsageError if there is no validation set.
    """
    run, data = load_run(path, root, overrides)
    with data.loader() as loader:
        directory = run_place(root, run, loader.record()).directory
    found = _checkpoints(run, directory, checkpoint, say)
    if not data.evaluations:
        raise UsageError(f"{path}: nothing to evaluate; give a component validation_tokens, or add [data.evaluation.x]")
    use_compilation_cache(run)
    trainer = trainer_of(run, devices)
    with jax.set_mesh(trainer.mesh):
        parts = ("params", "model", *(("ema",) if run.optimizer.ema else ()))
        like = {name: trainer.like()[name] for name in parts}
        state, restored = restore_newest(found, like, say, whole=False)
        metrics = evaluate_all(trainer, state, data.evaluations, data.token_bytes, run.evaluation.batches)
    return Evaluated(str(restored.path), restored.marker.step, metrics)


def _checkpoints(run: Run, directory: str, checkpoint: str | None, say: Say) -> list[Candidate]:
    """Return the requested checkpoint, or all checkpoints of the run, newest first."""
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
