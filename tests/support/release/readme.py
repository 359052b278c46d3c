"""Reads the commands, the recipe and the Python code of README.md, and prepares a folder in which they can run."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.caches import trained
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import prose

BLOCK = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+", re.MULTILINE)
COMMAND = re.compile(r"(?:datakit|make|pip) ")
TRAINING = """
name = "books"
steps = 4
compilation_cache = ""
[model]
hidden = 32
layers = 1
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
moe_backend = "dense"
[data]
sequence_length = 32
batch_size = 8
[data.components.novels]
cache = "data/shelf"
source = "novels"
validation_tokens = 400
[[data.stages]]
weights = { novels = 1.0 }
"""
MIXTURE = """
sequence_length = 32
batch_size = 8
steps = 4
[components.novels]
cache = "data/shelf"
source = "novels"
[[stages]]
weights = { novels = 1.0 }
"""


def blocks() -> list[str]:
    """Return README.md's indented blocks."""
    return [textwrap.dedent(block).strip("\n") for block in BLOCK.findall((REPOSITORY / "README.md").read_text())]


def commands() -> list[str]:
    """Return every command line of README.md, as printed."""
    return [line for block in blocks() for line in block.splitlines() if COMMAND.match(line)]


def block_with(start: str) -> str:
    """Return the only block that begins with these words."""
    (found,) = (block for block in blocks() if block.startswith(start))
    return found


def write_scene(folder: Path) -> None:
    """Write the files that README.md's recipe and commands name."""
    novels = folder / "texts" / "novels" / "old"
    novels.mkdir(parents=True)
    lines = [json.dumps({"text": prose(number)}) for number in (*range(120), 5)]
    with gzip.open(novels / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    rows = [{"body": prose(1000 + number), "language": ("en", "de")[number % 2]} for number in range(80)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "texts" / "manuals.parquet")
    (folder / "gpt2.json").write_bytes(trained())
    (folder / "recipe.toml").write_text(block_with('name = "shelf"'))
    (folder / "run.toml").write_text(TRAINING)
    (folder / "mix.toml").write_text(MIXTURE)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a shell that finds the command `datakit`."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "datakit").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m datakit "$@"\n')
    (programs / "datakit").chmod(0o755)
    paths = os.pathsep.join([str(programs), os.environ["PATH"]])
    return os.environ | {"PATH": paths, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "80"}
