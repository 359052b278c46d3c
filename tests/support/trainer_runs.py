"""A small run for the trainer's tests: the bytes of a real text in memory, a Grug of 20 k parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from datakit.errors import DatakitError
from datakit.trainer.checkpoints.checkpoint import Checkpoints
from datakit.trainer.config import Evaluation, Log, Run
from datakit.trainer.models import grug
from datakit.trainer.optimizer import Optimizer
from tests.support.data import need_data

BYTES = 256


@dataclass(frozen=True)
class Rows:
    """A batch."""

    tokens: np.ndarray
    segments: np.ndarray
    loss_mask: np.ndarray


class TextBytes:
    """Random windows of a text's bytes; lines are documents. Batch `step` is a function of (seed, step)."""

    def __init__(self, text: bytes, rows: int = 8, length: int = 32, seed: int = 0) -> None:
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


def shakespeare() -> bytes:
    """1.1 MB of plays."""
    return (need_data() / "tinyshakespeare/data/tinyshakespeare/input.txt").read_bytes()


def small_run(**changes: Any) -> Run:
    """A run of 12 steps that saves nothing but its end."""
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
    )
    run = Run(
        name="plays",
        steps=12,
        model=model,
        optimizer=Optimizer(learning_rate=0.03, adam_learning_rate=0.01, beta2=0.95, epsilon=1e-10),
        compilation_cache="",
        checkpoint=Checkpoints(interval_minutes=1e9),
        evaluation=Evaluation(),
        log=Log(progress_seconds=0.0),
    )
    return dataclasses.replace(run, **changes)
