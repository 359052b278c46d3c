"""`datakit train` and `datakit eval` as functions: from a run's TOML file to its end, or to its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from etils import epath

from datakit.errors import CheckpointError, UsageError, suggestion
from datakit.storage import urls
from datakit.toml_config import read_toml
from datakit.trainer.checkpoints.checkpoint import Candidate, candidate_at, candidates, restore_weights
from datakit.trainer.checkpoints.select import checkpoint_folders, restore_newest
from datakit.trainer.config import Run, parse_run, with_overrides
from datakit.trainer.data import Data, open_data
from datakit.trainer.evaluate import evaluate_all
from datakit.trainer.run_manifest import run_directory
from datakit.trainer.train import Outcome, say_on_stderr, train, trainer_of, use_compilation_cache

RUNS = Path(__file__).with_name("runs")
Say = Callable[[str], None]


def load_run(name_or_path: str | Path, root: str = "./data", overrides: Iterable[str] = ()) -> tuple[Run, Data]:
    """The run of a TOML file and its opened data; `steps=20`, `model.hidden=64`, ... change the file's values.

    A model without a vocabulary takes the tokenizer's. Raises RecipeError, UsageError, and the errors of the caches.
    """
    path = _path(name_or_path)
    document = with_overrides(read_toml(path, "give the TOML file of a training run"), overrides)
    data = open_data(document.pop("data", {}), path, root)
    model = {"vocabulary": data.vocabulary, **document.get("model", {})}
    run = parse_run({**document, "model": model}, str(path))
    smallest = max(cache.contract.vocabulary_size for cache in data.caches.values())
    if run.model.vocabulary < smallest:
        raise UsageError(
            f"{path}: model.vocabulary is {run.model.vocabulary}, but the caches hold ids below {smallest}"
        )
    return run, data


def run_names() -> list[str]:
    """The runs that come with datakit."""
    return sorted(path.stem for path in RUNS.glob("*.toml"))


def _path(name_or_path: str | Path) -> Path:
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or path.is_file():
        return path
    if str(name_or_path) not in run_names():
        advice = suggestion(str(name_or_path), run_names())
        raise UsageError(f"no training run {str(name_or_path)!r}: neither a TOML file nor a known name; {advice}")
    return RUNS / f"{name_or_path}.toml"


def train_file(
    path: str | Path, root: str = "./data", overrides: Iterable[str] = (), say: Say = say_on_stderr
) -> Outcome:
    """Train the run of a TOML file to its end, or find it done."""
    run, data = load_run(path, root, overrides)
    for note in data.notes:
        say(note)
    with data.loader() as loader:
        directory = run_directory(root, run, loader.record())
        inputs = data.inputs(directory)
        return train(
            run, loader, root, evaluations=data.evaluations, token_bytes=data.token_bytes, inputs=inputs, say=say
        )


@dataclass(frozen=True)
class Evaluated:
    """Figures of a checkpoint, and which one it was."""

    checkpoint: str
    step: int
    figures: dict[str, float]


def evaluate_file(
    path: str | Path,
    root: str = "./data",
    checkpoint: str | None = None,
    overrides: Iterable[str] = (),
    devices: Sequence[Any] | None = None,
    say: Say = say_on_stderr,
) -> Evaluated:
    """The figures of the newest checkpoint of a run, or of the one in directory `checkpoint`, over the file's sets."""
    run, data = load_run(path, root, overrides)
    with data.loader() as loader:
        directory = run_directory(root, run, loader.record())
    found = _checkpoints(run, directory, checkpoint, say)
    if not data.evaluations:
        raise UsageError(f"{path}: nothing to evaluate; give a component validation_tokens, or add [data.evaluation.x]")
    use_compilation_cache(run)
    trainer = trainer_of(run, devices)
    with jax.set_mesh(trainer.mesh):
        parts = ("params", "model", *(("ema",) if run.optimizer.ema else ()))
        like = {name: trainer.like()[name] for name in parts}
        state, taken = restore_newest(found, like, say, restore_weights)
        figures = evaluate_all(trainer, state, data.evaluations, data.token_bytes, run.evaluation.batches)
    return Evaluated(str(taken.path), taken.marker.step, figures)


def _checkpoints(run: Run, directory: str, checkpoint: str | None, say: Say) -> list[Candidate]:
    """The one asked for, or all of the run, the newest first."""
    places = list(dict.fromkeys(checkpoint_folders(directory, run.checkpoint.temporary_root)))
    if checkpoint is None:
        found = candidates(places, say)
    else:
        places = [urls.absolute(checkpoint)]
        found = [one for one in [candidate_at(epath.Path(places[0]), say)] if one is not None]
    if not found:
        raise CheckpointError(f"no valid checkpoint in {' or '.join(places)}; train the run first")
    return found
