"""A run file over a small token cache of two sources."""

from __future__ import annotations

from pathlib import Path

from tests.support.caches import make_cache
from tests.support.partitions import words

MODEL = """
name = "small"
steps = 6
compilation_cache = ""
[model]
hidden = 32
layers = 2
heads = 2
kv_heads = 1
head_width = 16
experts = 4
experts_per_token = 2
expert_width = 32
shared_width = 32
gate_rank = 8
window = 32
compute = "float32"
[checkpoint]
interval_minutes = 1000
keep_every = 4
[evaluation]
every = 4
[log]
progress_seconds = 0
"""
DATA = """
[data]
sequence_length = 32
batch_size = 8
[data.components.web]
cache = "{root}/cache"
source = "web"
validation_tokens = 400
[data.components.code]
cache = "{root}/cache"
source = "code"
[data.evaluation."exams/code"]
cache = "cache"
source = "code"
[[data.stages]]
weights = { web = 0.75, code = 0.25 }
"""


def write_run_file(folder: Path) -> Path:
    """Make the cache and the run file in `folder`, and return the file's path."""
    starts = {"code": 0, "web": 1000}
    make_cache(
        folder, {name: [words(start + i, 1, 20 + i % 60)[0] for i in range(120)] for name, start in starts.items()}
    )
    path = folder / "run.toml"
    dense = MODEL.replace("[checkpoint]", 'moe_backend = "dense"\n[checkpoint]')  # compiles fastest
    path.write_text(dense + DATA)
    return path
