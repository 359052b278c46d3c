"""A small dataset for tests: two sources of made-up documents with known duplicates, and a recipe file for them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datakit.download.hashes import SETTLED_NS
from tests.support.paths import REPOSITORY

WORDS = [f"word{number}" for number in range(400)]

RECIPE = """
name = "shelf"

[[sources]]
name = "novels"
url = "novels"

[[sources]]
name = "letters"
url = "letters"
text = "body"

[dedup]

[tokenize]
tokenizer = "train"

[tokenize.train]
vocabulary = 400
"""


def prose(seed: int, words: int = 60) -> str:
    """A document of its own for each seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def write_lines(path: Path, texts: list[str], column: str = "text") -> None:
    """A JSON Lines file with one record a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({column: text, "n": n}) + "\n" for n, text in enumerate(texts)))


def make_shelf(folder: Path) -> Path:
    """The recipe's file. 100 novels, 2 of them equal, 1 blank; 50 letters, 3 novels among them, 1 nearly one."""
    novels = [prose(number) for number in range(97)] + [prose(0), prose(1), " \n"]
    nearly = prose(5) + " and one more"
    write_lines(folder / "novels" / "a.jsonl", novels)
    write_lines(folder / "letters" / "b.jsonl", [prose(n) for n in (2, 3, 4)] + [nearly] +
                [prose(1000 + n) for n in range(46)], "body")  # fmt: skip
    recipe = folder / "shelf.toml"
    recipe.write_text(RECIPE)
    return recipe


def settle() -> None:
    """Wait until files of this moment are old enough for their hashes to be remembered; else a later run does."""
    time.sleep(SETTLED_NS / 1e9 + 0.1)


def command(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`datakit ...` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "datakit", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def tree(folder: Path, without: tuple[str, ...] = ("ledger", "runs", ".cache")) -> dict[str, bytes]:
    """Every file below a folder, by relative path; logs and ledgers aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(without) & set(path.relative_to(folder).parts)
    }


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A recipe file with its texts beside it."""
    return make_shelf(tmp_path / "shelf")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `shelf/shelf.toml` and its finished run in `root`."""
    folder = tmp_path_factory.mktemp("finished")
    make_shelf(folder / "shelf")
    settle()
    done = command("run", "shelf/shelf.toml", "--root", "root", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def step(folder: Path, pattern: str) -> Path:
    """The one path that matches."""
    (found,) = folder.glob(pattern)
    return found


def changes(folder: Path) -> dict[str, int]:
    """When each file and folder was changed last."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


TRANSFORM = """
import os, time
def poisoned(batch):
    if any(b"poison" in text.cast("binary").as_py() for text in batch["text"]):
        os._exit(9)
    return batch
def slow(batch):
    time.sleep(600)
    return batch
"""


def write_pages(folder: Path, transform: str) -> Path:
    """1,100 small files, which make several tasks; the last holds the poison."""
    pages = folder / "pages"
    pages.mkdir(parents=True)
    for number in range(1100):
        (pages / f"{number:04d}.txt").write_text(prose(number, 5) + (" poison" if number == 1099 else ""))
    write_lines(folder / "good" / "a.jsonl", [prose(number) for number in range(9)])
    (folder / "transforms.py").write_text(TRANSFORM)
    recipe = folder / "pages.toml"
    recipe.write_text(
        'name = "pages"\n[[sources]]\nname = "pages"\nurl = "pages"\n'
        f'transform = "transforms:{transform}"\ntransform_version = 1\n[[sources]]\nname = "good"\nurl = "good"\n'
    )
    return recipe
