"""The recipe `demo-curated` shows every part of curation on any machine, and a copy of it can be edited."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datakit.annotate.personal.config import PersonalConfig
from datakit.catalog.demo_annotators import COLUMN, legal_words
from datakit.recipe import load_recipe
from datakit.storage.parquet import read_shard
from datakit.validate.validation import validate
from tests.support.command_line import invoke

RULES = [str(rule["name"]) for rule in load_recipe("demo-curated").rules]
WORDS = "the of and to that it is this a package which people have written for reading and writing tables of numbers"
LEGAL = "license warranty liability copyright permission damages and the of to distribution of software with copyright"
GERMAN = "Dieses Paket liest und schreibt Tabellen mit vielen Zahlen, und es ist für alle gedacht, die damit arbeiten. "


def write_packages(folder: Path) -> None:
    """Write a folder of installed packages, in place of those that happen to be installed: descriptions, one of which
    is not English and one of which consists of words of licenses, and licenses that differ in names and addresses.
    """
    made = random.Random(0)
    for number in range(16):
        place = folder / f"package{number}-1.0.dist-info"
        place.mkdir(parents=True)
        words = (WORDS.split() + [f"word{made.randrange(500)}" for _ in range(40)]) * 2
        made.shuffle(words)
        (place / "METADATA").write_text(f"Write to the author{number}@mail.invalid.org. {' '.join(words)}.\n")
        text = " ".join(f"{WORDS} in clause {clause} of license {number % 4}." for clause in range(20))
        (place / "LICENSE").write_text(f"Copyright author{number} <me{number}@mail.invalid.org>\n{text}\n")
    (folder / "package0-1.0.dist-info" / "METADATA").write_text(GERMAN * 5)
    (folder / "package1-1.0.dist-info" / "METADATA").write_text(f"{LEGAL}. " * 8 + f"{WORDS}. " * 8)


def settings(folder: Path) -> list[str]:
    return [
        part
        for source in ("packages", "licenses")
        for part in ("--set", f"sources.{source}.url={folder / 'installed'}")
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the demonstration has run, and what the run printed."""
    folder = tmp_path_factory.mktemp("demo")
    write_packages(folder / "installed")
    done = invoke("run", "demo-curated", "--offline", *settings(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def texts(folder: Path) -> list[str]:
    """The texts of the dataset that the run has consolidated."""
    return [
        text
        for path in sorted(folder.glob("data/demo-curated/consolidate-*/data/*/*.parquet"))
        for text in read_shard(str(path), ["text"])["text"].to_pylist()
    ]


def test_run_ends_with_the_result_and_the_next_steps(demo: tuple[Path, str]) -> None:
    folder, out = demo
    lines = {line.partition(":")[0]: line.partition(":")[2].strip() for line in out.splitlines() if ":" in line}
    assert Path(lines["cache"], "manifest.json").is_file()
    assert lines["rules"] == f"datakit rules show {folder / 'data' / 'demo-curated'}"
    assert max(map(len, out.partition("\n\n")[0].splitlines())) <= 80


def test_everything_that_the_recipe_shows_takes_place(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    found: dict[str, Any] = json.loads(invoke("rules", "show", "data/demo-curated", "--json", cwd=folder).stdout)
    decided = dict.fromkeys(RULES, 0)
    for effect in found["rules"]:
        decided[effect["rule"]] += effect["decides"]
    if not Path(sysconfig.get_path("stdlib"), "LICENSE.txt").is_file():
        del decided["python_license"]  # some distributions keep the license elsewhere
    assert 0 not in decided.values(), decided
    (select,) = folder.glob("data/demo-curated/select-*/manifest.json")
    counters = json.loads(select.read_text())["counters"]
    assert counters["select/edits/mail"] > 10 and counters["select/edits/quiz"] > 0
    assert counters["select/dropped_fuzzy"] > 0
    assert all(kept["documents"] and kept["tokens"] for kept in found["retained"].values())


def test_no_address_is_left(demo: tuple[Path, str]) -> None:
    kept = texts(demo[0])
    assert len(kept) > 100 and any("<EMAIL>" in text for text in kept)
    found = PersonalConfig(kinds=("email",)).annotator().annotate(
        pa.record_batch({"text": pa.array(kept, pa.large_string())})
    )  # fmt: skip
    assert sum(len(spans or ()) for spans in found["spans"].to_pylist()) == 0


def test_dataset_is_valid(demo: tuple[Path, str]) -> None:
    report = validate(str(demo[0] / "data"))
    assert report.findings == [] and report.steps


def test_copy_of_the_recipe_finds_its_files(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    (folder / "mine.toml").write_text(invoke("catalog", "recipe", "demo-curated", cwd=folder).stdout)
    again = invoke("run", "mine.toml", "--offline", *settings(folder), cwd=folder)
    assert "everything was already done" in again.stdout, again.stderr


def test_words_of_licenses_are_counted_in_any_case() -> None:
    batch = pa.record_batch({"text": pa.array(["LICENSE, license; licensed", "", "a warranty"], pa.large_string())})
    assert legal_words(batch).to_pydict() == {COLUMN: [2, 0, 1]}
