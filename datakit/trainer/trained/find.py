"""Finds a trained model: its settings, its checkpoints, and the tokenizer and contract of its caches.

    run = find_trained("data/demo-train/train-0123456789ab")     # the directory of a finished run
    run = find_trained("my-run.toml", "data")                    # a run file; the run need not be finished
    params, state, checkpoint = run.restore(mesh)

The directory of a finished run describes the whole run. That of an unfinished run lacks the model's settings, so such
a run is found by its run file, as by `datakit eval`. So is a run with a model of the user's own, because a directory
must not decide which code is executed (`run_directory/run_code.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.cache.contract import Contract
from datakit.cache.reader import Cache, open_cache
from datakit.errors import CheckpointError, UsageError
from datakit.storage import urls
from datakit.storage.manifest import Manifest, find_manifest
from datakit.toml_config import decoded
from datakit.trainer.checkpoints.candidates import Candidate, Say, candidate_at, candidates
from datakit.trainer.checkpoints.select import FOLDER, restore_newest
from datakit.trainer.commands import checkpoints_of
from datakit.trainer.config import STAGE
from datakit.trainer.data import recorded_caches
from datakit.trainer.load_run import directory_of, load_begun
from datakit.trainer.models import KIND, load_model
from datakit.trainer.models.weights import Tree, shardings
from datakit.trainer.run_directory.run_code import require_built_in
from datakit.trainer.run_file import read_run_file


@dataclass(frozen=True)
class TrainedRun:
    """A run that has checkpoints. caches: its caches, the first of which gives the tokenizer. found: its checkpoints,
    newest first. averages: True if the run has averaged weights. manifest: None if the run is not finished.
    """

    name: str
    directory: str
    kind: str
    model: Any  # a module that implements `protocol.Model`
    config: Any
    averages: bool
    caches: tuple[Cache, ...]
    found: list[Candidate]
    manifest: Manifest | None
    say: Say

    @property
    def contract(self) -> Contract:
        """The contract of the caches' tokenizer."""
        return self.caches[0].contract

    @cached_property
    def tokenizer(self) -> bytes:
        """The content of the caches' tokenizer.json."""
        return urls.read_bytes(self.caches[0].tokenizer_url)

    def restore(self, mesh: Mesh, averaged: bool = False) -> tuple[Tree, Tree, Candidate]:
        """Restore the newest valid checkpoint; return its parameters, its model state and its identity.

        averaged: return the averaged weights. Raises UsageError if the run has none, and CheckpointError.
        """
        if averaged and not self.averages:
            raise UsageError(f"{self.directory} has no averaged weights (optimizer.ema is not set); leave out --ema")
        whole, state = NamedSharding(mesh, P()), jax.eval_shape(lambda: self.model.initial_state(self.config))
        table = self.model.weights(self.config)
        like = {
            "params": jax.tree.map(
                lambda weight, at: jax.ShapeDtypeStruct(weight.shape, "float32", sharding=at),
                table,
                shardings(table, mesh),
            ),
            "model": jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), state),
        }
        parts, candidate = restore_newest(self.found, {"ema": like} if averaged else like, self.say, whole=False)
        weights = parts["ema"] if averaged else parts
        return weights["params"], weights["model"], candidate


def find_trained(
    run: str,
    root: str = "./data",
    overrides: Iterable[str] = (),
    checkpoint: str | None = None,
    say: Say = lambda line: None,
) -> TrainedRun:
    """Find a trained run by its directory or its run file. checkpoint: the directory of the only checkpoint to use.

    Raises UsageError for an unfinished run's directory, CheckpointError if there is no checkpoint, and the errors of
    `load_run` and `open_cache`.
    """
    overrides = list(overrides)
    if not Path(run).is_dir():
        settings, data = load_begun(read_run_file(run, overrides), root, say, finished=True)
        directory = directory_of(settings, data, root)
        found = checkpoints_of(settings, directory, checkpoint, say)
        model, averages = load_model(settings.kind), settings.optimizer.ema is not None
        caches = tuple(data.caches.values())
        manifest = find_manifest(directory)
        return TrainedRun(
            settings.name, directory, settings.kind, model, settings.model, averages, caches, found, manifest, say
        )
    if overrides:
        raise UsageError(f"--set has no effect on {run}, which is the directory of a run; leave it out")
    return _in_directory(urls.absolute(run), checkpoint, say)


def _in_directory(directory: str, checkpoint: str | None, say: Say) -> TrainedRun:
    manifest = find_manifest(directory)
    if manifest is None or manifest.stage != STAGE:
        raise UsageError(
            f"{directory} is not the directory of a finished training run; give such a directory, or the run file of "
            "a run that is not finished"
        )
    settings: Mapping[str, Any] = manifest.parameters
    require_built_in(directory, settings["kind"], KIND, "give the run file of this run")
    model = load_model(settings["kind"])
    config = decoded(settings["model"], model.Config, f"{directory}/manifest.json, model")
    places = [urls.absolute(checkpoint) if checkpoint else urls.join(directory, FOLDER)]
    named = candidate_at(epath.Path(places[0]), say) if checkpoint else None
    found = ([named] if named else []) if checkpoint else candidates(places, say)
    if not found:
        raise CheckpointError(f"no valid checkpoint in {places[0]}")
    averages = settings["optimizer"].get("ema") is not None
    return TrainedRun(
        manifest.dataset, directory, settings["kind"], model, config, averages, _caches(directory), found, manifest, say
    )


def _caches(directory: str) -> tuple[Cache, ...]:
    """Open the caches that a run has recorded. Raises UsageError if there are none, and the errors of `open_cache`."""
    recorded = recorded_caches(directory)
    if not recorded:
        raise UsageError(
            f"{directory} does not record which caches its run read, so its tokenizer is unknown; the run was not "
            "started by `datakit train`"
        )
    return tuple(open_cache(cache) for cache in sorted({found.cache for found in recorded.values()}))
