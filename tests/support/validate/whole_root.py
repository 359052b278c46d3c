"""Builds a small root that holds a finished step of every stage, and a finished training run.

Three sources: `novels` (with exact duplicates, a blank record and one that cannot be read), `letters` (with copies of
novels and near copies) and `pages`, which is downloaded over HTTP. One packing step counts the novels' sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datakit
from datakit.loader import load_mixture
from datakit.pipeline.run_packing import pack_mixture
from datakit.trainer.commands import train_file
from tests.support.run_files import MODEL
from tests.support.small_shelf import prose, write_lines
from tests.support.trainer.trainer_runs import silent

RECIPE = """
name = "shelf"
[[sources]]
name = "novels"
url = "novels"
[[sources]]
name = "letters"
url = "letters"
text = "body"
[[sources]]
name = "pages"
url = "http://127.0.0.1:{port}/pages.jsonl"
[normalize]
max_quarantined = 1
partition_bytes = 16384
[dedup]
[tokenize]
tokenizer = "train"
[tokenize.train]
vocabulary = 400
"""
DATA = """
[data]
sequence_length = 32
batch_size = 8
[data.components.novels]
cache = "{root}/shelf"
source = "novels"
validation_tokens = 400
[data.components.letters]
cache = "{root}/shelf"
source = "letters"
packing = { too_long = "split" }
[[data.stages]]
weights = { novels = 0.75, letters = 0.25 }
[[data.stages]]
start_step = 4
weights = { novels = 0.5, letters = 0.5 }
"""
MIXTURE = """
sequence_length = 64
batch_size = 8
[components.letters]
cache = "root/shelf"
source = "letters"
packing = { too_long = "split", max_documents = 6 }
shuffle = { block_tokens = 512 }
[[stages]]
weights = { letters = 1 }
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve a folder over HTTP; yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def write_sources(folder: Path) -> None:
    """Write the files of all sources."""
    novels = [prose(number) for number in range(117)] + [prose(0), prose(1), " \n"]
    write_lines(folder / "novels" / "a.jsonl", novels)
    with (folder / "novels" / "a.jsonl").open("a") as file:
        file.write("no record\n")
    near = [prose(number) + f" and {number} more" for number in range(10, 18)]
    copies = [prose(number) for number in (2, 3, 4)]
    write_lines(folder / "letters" / "b.jsonl", copies + near + [prose(1000 + n) for n in range(60)], "body")
    write_lines(folder / "web" / "pages.jsonl", [prose(5000 + n) for n in range(20)] + [prose(1001)])


def build(folder: Path) -> Path:
    """Run the recipe, pack a mixture and train; return the root."""
    write_sources(folder)
    with served(folder / "web") as port:
        (folder / "shelf.toml").write_text(RECIPE.replace("{port}", str(port)))
        datakit.run(folder / "shelf.toml", folder / "root", workers=2)
    (folder / "mix.toml").write_text(MIXTURE)
    pack_mixture(load_mixture(folder / "mix.toml"), str(folder / "root"), workers=1)
    dense = MODEL.replace("[checkpoint]", 'moe_backend = "dense"\n[checkpoint]').replace("every = 4\n[log]", "[log]")
    (folder / "run.toml").write_text(dense.replace("[evaluation]\nevery = 4\n", "") + DATA)
    train_file(folder / "run.toml", str(folder / "root"), say=silent)
    return folder / "root"
