"""Fixtures of the trainer's tests: one compiled training step for all of them, and one finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from datakit.trainer import train as loop
from datakit.trainer.config import Run
from datakit.trainer.step import Trainer
from tests.support.trainer.trainer_runs import TextBytes, saving_run, silent

CACHING = "jax_enable_compilation_cache"
DEVICES = 2  # unless a test names its devices: on all 8, a step of these small runs takes five times as long


@pytest.fixture(scope="session", autouse=True)
def shared_trainers() -> Iterator[None]:
    """Give equal runs of one process the same `Trainer`. It has no state, so they only share its compiled functions."""
    make, trainers = loop.trainer_of, dict[Any, Trainer]()

    def shared(run: Run, devices: Sequence[Any] | None = None) -> Trainer:
        devices = tuple(devices or jax.devices()[:DEVICES])
        key = (
            run.kind,
            run.model,
            run.optimizer.constants(),
            (run.replicas, run.expert_parallel, run.tensor_parallel),
            run.log.watch,
            run.log.watch_histograms,
            run.microbatch,
            devices,
        )
        if key not in trainers:
            trainers[key] = make(run, devices)
        return trainers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "trainer_of", shared)
        yield


@pytest.fixture
def no_compilation_cache() -> Iterator[None]:
    """Load no compiled program. With the flags of `tests/conftest.py`, which compile fast, XLA (JAX 0.10.2) crashes on
    a CPU if two programs for a mesh with several replicas were loaded; with its own flags, it does not.
    """
    before = getattr(jax.config, CACHING)
    jax.config.update(CACHING, False)
    compilation_cache.reset_cache()
    yield
    jax.config.update(CACHING, before)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of an uninterrupted run with checkpoints at steps 3, 6, 9 and 12. Tests must not change it."""
    return loop.train(saving_run(), TextBytes(), str(tmp_path_factory.mktemp("finished")), say=silent).directory


@pytest.fixture
def lines() -> list[str]:
    """Lines that a run says."""
    return []
