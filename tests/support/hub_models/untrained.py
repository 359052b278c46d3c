"""Makes a run with random weights in a real checkpoint, for tests that need a model of a certain kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datakit.cache.reader import open_cache
from datakit.trainer.checkpoints.candidates import Marker
from datakit.trainer.checkpoints.checkpoint import Checkpoints, Writer
from datakit.trainer.models import load_model
from datakit.trainer.models.weights import Tree, initialize
from datakit.trainer.trained.find import TrainedRun
from tests.support.trainer.trainer_runs import checkpoints_of, silent

LONGEST = 128  # the length of the sequences, which becomes `max_position_embeddings`


def random_weights(kind: str, config: Any, seed: int = 0) -> Tree:
    """Weights with noise in every array, also in those that training starts as ones or zeros."""
    generator = np.random.default_rng(seed)
    start = initialize(load_model(kind).weights(config), jax.random.key(seed))
    return jax.tree.map(lambda x: x + jnp.asarray(generator.normal(0, 0.1, x.shape), jnp.float32), start)


def untrained_run(folder: Path, kind: str, config: Any, params: Tree, cache: Path) -> TrainedRun:
    """A run that saved these weights at step 1."""
    model = load_model(kind)
    mixture = {"sequence_length": [[0, LONGEST]], "stages": []}
    writer = Writer(Checkpoints(), f"{folder}/checkpoints", f"{folder}/checkpoints", "0" * 32, silent)
    marker = Marker(1, "", mixture, {"tokens": 256, "sequences": 8}, {}, True, {})
    writer.save({"params": params, "model": model.initial_state(config)}, marker)
    writer.close()
    found, caches = checkpoints_of(str(folder)), (open_cache(str(cache)),)
    return TrainedRun("random", str(folder), kind, model, config, False, caches, found, None, silent)
