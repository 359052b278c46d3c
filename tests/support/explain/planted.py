"""A small run over ordinary texts and a few texts of random characters, which a later stage of the mixture adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.caches import make_cache, trained
from tests.support.partitions import words
from tests.support.run_files import MODEL

TOXIC, STEPS, FIRST = 4, 16, 6  # number of toxic documents; steps of the run; the first batch that may hold them
DATA = """
[data]
sequence_length = 64
batch_size = 4
[data.components.text]
cache = "{root}/cache"
source = "text"
packing = "split"
[data.components.toxic]
cache = "{root}/cache"
source = "toxic"
packing = "split"
[[data.stages]]
weights = { text = 1.0 }
[[data.stages]]
start_step = %d
weights = { text = 0.85, toxic = 0.15 }
"""


def garbage(seed: int, characters: int = 60) -> str:
    """A text of random characters between ! and the end of Latin-1, without control characters."""
    codes = np.random.default_rng(seed).integers(33, 127, characters)
    return "".join(map(chr, codes.tolist()))


def write_planted(folder: Path) -> Path:
    """Make the cache and the run file in `folder`; return the run file's path."""
    texts = {"text": [words(i, 1, 8 + i % 20)[0] for i in range(200)], "toxic": [garbage(i) for i in range(TOXIC)]}
    make_cache(folder, texts, trained())
    path = folder / "run.toml"
    model = MODEL.replace("steps = 6", f"steps = {STEPS}").replace("[evaluation]\nevery = 4\n", "")
    dense = "experts = 0\n"
    lines = [line for line in model.splitlines() if not line.startswith(("experts", "expert_width"))]
    text = "\n".join(lines).replace("hidden = 32", f"{dense}hidden = 32").replace("layers = 2", "layers = 1")
    optimizer = '[optimizer]\nlearning_rate = 0.03\nadam_learning_rate = 0.02\nschedule = "constant"\nwarmup = 0.0\n'
    path.write_text(text + "\n" + optimizer + DATA % FIRST)
    return path
