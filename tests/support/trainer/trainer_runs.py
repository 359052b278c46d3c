"""A small run for the trainer's tests: the bytes of a text held in memory, and a Grug of 20 k parameters.

Compiling is what costs time here. Tests that only need *a* run use `saving_run` unchanged, so all of them share one
compiled training step: see the fixture in `tests/trainer/conftest.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from datakit.errors import DatakitError
from datakit.loader import ArraySource, Component, Mixture, Packing, Schedule
from datakit.trainer.checkpoints.candidates import Candidate, candidates
from datakit.trainer.checkpoints.checkpoint import Checkpoints, restore
from datakit.trainer.config import Evaluation, Log, Run
from datakit.trainer.metrics.json_lines import read_metrics
from datakit.trainer.models import grug
from datakit.trainer.optimizers import adamh, adamw
from datakit.trainer.train import train, trainer_of
from tests.support.trainer.small_models import dense

BYTES = 256
STEPS = 12
TEXT = b"It was the best of times, it was the worst of times;\n\nwe had everything before us. " * 400
EXPLODING = adamw.Config(
    learning_rate=1e12, schedule="constant", warmup=0.0, weight_decay=0.0
)  # diverges within 2 steps


@dataclass(frozen=True)
class Rows:
    """A batch."""

    tokens: np.ndarray
    segments: np.ndarray
    loss_mask: np.ndarray


class TextBytes:
    """Random windows of a text's bytes; a blank line ends a document. Batch `step` depends on (seed, step) only."""

    def __init__(self, text: bytes = TEXT, rows: int = 8, length: int = 32, seed: int = 0) -> None:
        self.text, self.rows, self.length, self.seed = np.frombuffer(text, np.uint8), rows, length, seed

    def batch(self, step: int) -> Rows:
        generator = np.random.default_rng((self.seed, step))
        starts = generator.integers(0, len(self.text) - self.length, self.rows)
        tokens = self.text[starts[:, None] + np.arange(self.length)].astype(np.int32)
        paragraph = (tokens[:, :-1] == 10) & (tokens[:, 1:] == 10)
        segments = np.pad(np.cumsum(paragraph, axis=1), ((0, 0), (1, 0))) + 1
        return Rows(tokens, segments.astype(np.int32), np.ones(tokens.shape, bool))

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
        assert stop is not None
        yield from (self.batch(step) for step in range(start, stop))

    def outline(self, steps: int) -> list[tuple[int, int, int]]:
        return [(steps, self.rows, self.length)]

    def record(self) -> dict[str, Any]:
        return {"fingerprint": f"text-{self.seed}-{self.rows}x{self.length}", "stages": [[0, {"text": 1.0}]]}

    def verify(self, saved: dict[str, Any], step: int) -> list[str]:
        if saved != self.record():
            raise DatakitError(f"another text until step {step}")
        return []

    def snapshot(self, step: int) -> dict[str, float]:
        return {"epochs/text": step * self.rows * self.length / len(self.text)}


class PowerCut(Exception):
    """Ends a run in these tests."""


class Ending(TextBytes):
    """The text up to batch `end`; then the power is cut, or the data just end if `quiet`."""

    def __init__(self, end: int, quiet: bool = False) -> None:
        super().__init__()
        self.end, self.quiet = end, quiet

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Rows, None, None]:
        yield from super().iterate(start, min(self.end, stop or self.end))
        if not self.quiet:
            raise PowerCut


def silent(_: str) -> None:
    """Discard a line."""


def small_run(**changes: Any) -> Run:
    """A run of 12 steps that saves only its end. The dense expert backend compiles three times as fast as tiles."""
    model = grug.Config(
        vocabulary=BYTES,
        hidden=32,
        layers=2,
        heads=2,
        kv_heads=1,
        head_width=16,
        experts=4,
        experts_per_token=2,
        expert_width=32,
        shared_width=32,
        gate_rank=8,
        window=32,
        compute="float32",
        remat="none",
        moe_backend="dense",
    )
    run = Run(
        name="plays",
        steps=STEPS,
        model=model,
        optimizer=adamh.Config(learning_rate=0.03, adam_learning_rate=0.01, beta2=0.95, epsilon=1e-10, ema=0.9),
        compilation_cache="",
        checkpoint=Checkpoints(interval_minutes=1e9),
        evaluation=Evaluation(),
        log=Log(progress_seconds=0.0),
    )
    return dataclasses.replace(run, **changes)


def tiny_run(**changes: Any) -> Run:
    """The small run without experts: it compiles fastest."""
    run = small_run()
    return dataclasses.replace(run, model=dense(run.model, layers=1), **changes)


def saving_run(**changes: Any) -> Run:
    """The small run, with a permanent checkpoint every 3 steps."""
    return small_run(**{"checkpoint": Checkpoints(interval_minutes=1e9, keep_every=3), **changes})


def stopped(run: Run, root: Path, after: int, say: Callable[[str], None] = silent, devices: Any = None) -> str:
    """Train until the power is cut before batch `after`, and return the run's directory."""
    with pytest.raises(PowerCut):
        train(run, Ending(after), str(root), say=say, devices=devices)
    return directory_in(root)


def directory_in(root: Path) -> str:
    """The directory of the only run below `root`."""
    (found,) = (root / "plays").glob("train-*")
    return str(found)


def checkpoints_of(directory: str) -> list[Candidate]:
    """The checkpoints of a run that seem whole, newest first."""
    return candidates([f"{directory}/checkpoints"], silent)


def largest_file(candidate: Candidate) -> Path:
    """The file that holds most of a checkpoint's arrays."""
    files = [path for path in (Path(candidate.path) / "state").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip(candidate: Candidate) -> None:
    """Flip one bit of a checkpoint's arrays."""
    path = largest_file(candidate)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(candidate: Candidate) -> None:
    """Cut one byte off a checkpoint's arrays."""
    path = largest_file(candidate)
    path.write_bytes(path.read_bytes()[:-1])


def final_state(directory: str, run: Run, devices: Any = None) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint, by path."""
    restored = restore(checkpoints_of(directory)[0], trainer_of(run, devices).like())
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(restored)}


def assert_same_state(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    """Compare two states bit by bit."""
    assert ours.keys() == theirs.keys()
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)


def losses(directory: str) -> list[float]:
    """The training loss of each step."""
    return [row["train/loss"] for row in read_metrics(directory)]


def growing_batches(document: int = 99, packing: Packing | None = None) -> Mixture:
    """A mixture with batches of 8 x 16, from step 3 on of 8 x 32, and from step 4 on of 16 x 32."""
    tokens = np.arange(document * 100) % 256
    source = ArraySource(tokens.astype(np.uint16), np.full(100, document))
    lengths, sizes = Schedule(((0, 16), (3, 32))), Schedule(((0, 8), (4, 16)))
    return Mixture({"a": Component(source, packing=packing)}, {"a": 1.0}, sequence_length=lengths, batch_size=sizes)


def bytes_mixture(seed: int = 0) -> Mixture:
    """A mixture of the text's bytes in 60 documents, some of them held out."""
    tokens = np.resize(np.frombuffer(TEXT, np.uint8), 60_000).astype(np.uint16)
    component = Component(ArraySource(tokens, np.full(60, 1000)), validation_tokens=2000)
    return Mixture({"plays": component}, {"plays": 1.0}, sequence_length=32, batch_size=8, seed=seed)
