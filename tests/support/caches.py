"""Token caches made by the real stage from texts, for tests."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from datakit.engine.inline import run_plan_inline
from datakit.engine.scheduler.finish import Tally, finish_step
from datakit.engine.task import Step, StepInput
from datakit.storage.manifest import Manifest
from datakit.tokenize import stage
from datakit.tokenize.train_stage import Config, train
from tests.support.partitions import dataset, documents, step, words

CHOICES = {"encoder": "auto", "add": "eos", "bos": None, "eos": None}


@functools.cache
def trained(vocabulary: int = 400) -> bytes:
    """A tokenizer.json of a small byte-level BPE, trained on made-up words."""
    return train([words(0, 200)], Config(vocabulary=vocabulary))[0]


def clean(directory: Path, sources: Mapping[str, Sequence[str]], bits: int = 0) -> StepInput:
    """A consolidated dataset."""
    return dataset(directory, "consolidate", {name: documents(name, texts) for name, texts in sources.items()}, bits)


def tokenize_step(directory: str | Path, inputs: Sequence[StepInput], tokenizer: Path, **choices: Any) -> Step:
    """The step that makes a cache in `directory` with a tokenizer file."""
    sha256 = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    made = step(Path("unused"), "tokenize", inputs, **{**CHOICES, "tokenizer_sha256": sha256, **choices})
    return replace(made, directory=str(directory), operations={"tokenizer_path": str(tokenizer)})


def run(made: Step) -> Manifest:
    """Run a step to its manifest, in this process."""
    output, results = run_plan_inline(stage.plan(made), made.directory)
    return finish_step(made, output, Tally.of(results))


def make_cache(
    root: Path, sources: Mapping[str, Sequence[str]], tokenizer: bytes | None = None, bits: int = 0, **choices: Any
) -> Path:
    """A finished cache of these texts; its directory."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "tokenizer.json"
    path.write_bytes(tokenizer or trained())
    run(tokenize_step(root / "cache", [clean(root / "clean", sources, bits)], path, **choices))
    return root / "cache"
