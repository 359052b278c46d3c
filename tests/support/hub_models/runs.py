"""A run file for a tiny Qwen3-MoE over a small token cache, whose trained model can be exported."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from datakit.trainer.commands import train_file
from tests.support.caches import make_cache
from tests.support.partitions import words
from tests.support.trainer.trainer_runs import silent

RUN = """
name = "small"
steps = {steps}
compilation_cache = ""
[model]
kind = "olmoe"
vocabulary = 512
hidden = 64
layers = 2
heads = 2
kv_heads = 1
head_width = 32
experts = 4
experts_per_token = 2
expert_width = 32
query_key_norm = "head"
renormalize = true
compute = "float32"
remat = "none"
moe_backend = "dense"
init_std = 0.2
[optimizer]
ema = 0.5
[checkpoint]
interval_minutes = 1000
keep_every = 2
[log]
progress_seconds = 1000
[data]
sequence_length = 32
batch_size = 8
[data.components.web]
cache = "cache"
validation_tokens = 400
[[data.stages]]
weights = {{ web = 1.0 }}
"""


def write_run(folder: Path, steps: int = 3) -> Path:
    """Make the cache and the run file in `folder`; return the file's path."""
    make_cache(folder, {"web": [words(i, 1, 20 + i % 60)[0] for i in range(120)]})
    path = folder / "run.toml"
    path.write_text(RUN.format(steps=steps))
    return path


@functools.cache
def finished_run() -> Path:
    """The folder of a finished run of 3 steps, with `run.toml` and the cache. Trained once in a process; tests must not
    change it.
    """
    folder = Path(tempfile.mkdtemp(prefix="hub-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train_file(write_run(folder), str(folder), say=silent)
    return folder


def directory_of_run(folder: Path) -> Path:
    """The directory of the only run in a folder."""
    (found,) = (folder / "small").glob("train-*")
    return found
