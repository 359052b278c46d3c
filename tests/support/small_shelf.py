"""Writes a small dataset for tests: two sources of made-up documents with known duplicates, and its recipe."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import datakit
from datakit.download.hashes import SETTLED_NS

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
    """A different document for each seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def write_lines(path: Path, texts: list[str], column: str = "text") -> None:
    """A JSON Lines file with one record per text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({column: text, "n": n}) + "\n" for n, text in enumerate(texts)))


def make_shelf(folder: Path) -> Path:
    """Write 100 novels (2 duplicates, 1 blank) and 50 letters (3 equal a novel, 1 nearly does); return the recipe."""
    novels = [prose(number) for number in range(97)] + [prose(0), prose(1), " \n"]
    nearly = prose(5) + " and one more"
    write_lines(folder / "novels" / "a.jsonl", novels)
    write_lines(folder / "letters" / "b.jsonl", [prose(n) for n in (2, 3, 4)] + [nearly] +
                [prose(1000 + n) for n in range(46)], "body")  # fmt: skip
    recipe = folder / "shelf.toml"
    recipe.write_text(RECIPE)
    return recipe


def run_with_columns(folder: Path) -> Path:
    """Run the pipeline on nine notes with a number, a struct and a list beside the text; return the dataset."""
    notes = folder / "notes" / "a.jsonl"
    notes.parent.mkdir(parents=True)
    records = ({"text": prose(n), "n": n, "meta": {"page": n}, "tags": ["a", "b"]} for n in range(9))
    notes.write_text("".join(json.dumps(record) + "\n" for record in records))
    recipe = folder / "notes.toml"
    recipe.write_text('name = "notes"\n[[sources]]\nname = "notes"\nurl = "notes"\n')
    datakit.run(recipe, folder / "root", workers=2)
    return folder / "root" / "notes"


def settle() -> None:
    """Wait until files written so far are old enough for their hashes to be remembered by the next run."""
    time.sleep(SETTLED_NS / 1e9 + 0.1)


def tree(folder: Path, without: tuple[str, ...] = ("ledger", "runs", ".cache", ".leases")) -> dict[str, bytes]:
    """Every file below a folder by relative path, without logs, ledgers and leases."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(without) & set(path.relative_to(folder).parts)
    }


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A recipe file next to its texts."""
    return make_shelf(tmp_path / "shelf")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[datakit.RunResult]:
    """A finished run of the shelf, shared by all tests: copy its folder before you change anything there. The last test
    fails if a test has added a run.
    """
    folder = tmp_path_factory.mktemp("finished")
    recipe = make_shelf(folder / "shelf")
    settle()
    yield datakit.run(recipe, folder / "root", workers=2)
    runs = [path.name for path in (folder / "root" / "shelf" / "runs").iterdir()]
    assert len(runs) == 1, f"a test has run in the shared root and must use finished_copy: {sorted(runs)}"


@pytest.fixture(scope="session")
def finished(finished_run: datakit.RunResult) -> Path:
    """The shared folder with `shelf/shelf.toml` and its finished run in `root`."""
    return Path(finished_run.root).parent


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be changed."""
    return shutil.copytree(finished, tmp_path / "finished")


def step(folder: Path, pattern: str) -> Path:
    """Return the only path that matches."""
    (found,) = folder.glob(pattern)
    return found


def changes(folder: Path) -> dict[str, int]:
    """Map each file and folder, except the folder of leases, to the time of its last change."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".leases"}


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
    """Write 1,100 small files, enough for several tasks, the last one poisoned; return the recipe."""
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
