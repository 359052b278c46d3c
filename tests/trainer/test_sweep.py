"""Runs that differ only in learning rates, schedule or number of steps share one compiled step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

from datakit.trainer import train as loop
from datakit.trainer.config import Run
from datakit.trainer.device_feed import place
from datakit.trainer.models import load_model
from datakit.trainer.models.weights import make_mesh
from datakit.trainer.optimizers import adamw, muonh
from datakit.trainer.step import Trainer
from datakit.trainer.train import trainer_of  # before a fixture of these tests replaces it
from tests.support.trainer.trainer_runs import TextBytes, losses, silent, tiny_run

CACHE_EVENT = "/jax/compilation_cache/cache_"
TRIALS = [
    {"learning_rate": 0.01},
    {"learning_rate": 0.02, "warmup": 0.0},
    {"learning_rate": 0.02, "schedule": "trapezoid", "decay": 0.5},
]


def trial(changes: dict[str, Any], steps: int = 4, kind: Any = adamw) -> Run:
    return tiny_run(optimizer=kind.Config(**changes), steps=steps)


def new_trainer(run: Run) -> Trainer:
    """A trainer of its own, as another process would have."""
    mesh = make_mesh(1, jax.devices()[:2])
    return Trainer(
        load_model(run.kind), run.model, run.optimizer.constants(), mesh, run.log.watch, run.log.watch_histograms
    )


def lowered(run: Run) -> Any:
    trainer = new_trainer(run)
    with jax.set_mesh(trainer.mesh):
        batch = place(TextBytes().batch(0), trainer.mesh, 256).batch
        return trainer.advance.lower(trainer.like(), batch, trainer.rates_like())


@pytest.mark.parametrize("kind", [adamw, muonh])
def test_the_program_is_the_same_for_other_rates_and_steps(kind: Any) -> None:
    texts = {
        lowered(trial(changes, steps, kind)).as_text() for changes, steps in zip(TRIALS, (4, 5, 5000), strict=True)
    }
    assert len(texts) == 1
    assert lowered(trial({"beta2": 0.9}, kind=kind)).as_text() not in texts


def test_a_new_process_finds_the_program_in_the_cache() -> None:
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        pytest.skip("the tests run without JAX's compilation cache (JAX_COMPILATION_CACHE_DIR)")
    limits = ("jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")
    before = {name: getattr(jax.config, name) for name in limits}
    events: Counter[str] = Counter()

    def listen(event: str, **_: Any) -> None:
        events[event] += event.startswith(CACHE_EVENT)

    for name, value in zip(limits, (0.0, -1), strict=True):
        jax.config.update(name, value)
    jax.monitoring.register_event_listener(listen)
    try:
        lowered(trial(TRIALS[0])).compile()
        events.clear()
        lowered(trial(TRIALS[1], steps=77)).compile()
    finally:
        jax.monitoring.unregister_event_listener(listen)
        for name, value in before.items():
            jax.config.update(name, value)
    assert events[f"{CACHE_EVENT}hits"] == 1
    assert events[f"{CACHE_EVENT}misses"] == 0


def test_one_process_compiles_once_for_a_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compile_step, compiled = Trainer.compile, []

    def counted(self: Trainer, *arguments: Any) -> Any:
        compiled.append(self)
        return compile_step(self, *arguments)

    monkeypatch.setattr(Trainer, "compile", counted)
    monkeypatch.setattr(loop, "trainer_of", lambda run, _: trainer_of(run, jax.devices()[:2]))
    found = [
        losses(loop.train(trial(changes, steps), TextBytes(), str(tmp_path), say=silent).directory)
        for changes, steps in zip(TRIALS, (4, 5, 6), strict=True)
    ]
    assert len(compiled) == 1
    assert [len(one) for one in found] == [4, 5, 6]
    assert found[0][0] == found[1][0] == found[2][0]
    assert len({one[3] for one in found}) == 3  # the rates had an effect


def test_other_settings_get_a_trainer_of_their_own() -> None:
    run = trial({})
    assert trainer_of(run) is trainer_of(trial({"learning_rate": 0.5}, steps=9))
    for other in (
        trial({"beta1": 0.5}),
        trial({"ema": 0.9}),
        trial({}, kind=muonh),
        dataclasses.replace(run, log=dataclasses.replace(run.log, watch=("grad",))),
    ):
        assert trainer_of(other) is not trainer_of(run)
