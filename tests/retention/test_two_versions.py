"""Two versions of datakit on one root: neither stops, misreads or removes what the other wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from datakit.engine.ledger.ledger import AttemptLine, UnknownLine, read_ledger
from datakit.validate.intact import require_intact
from tests.support.faults.other_versions import (
    NEWER_FORMATS,
    NEWER_LEDGER,
    call,
    newer_version,
    previous_release,
    start,
)
from tests.support.paths import REPOSITORY

RECIPE = """
name = "made"
[[sources]]
name = "{source}"
url = "{source}"
format = "text"
[tokenize]
tokenizer = "bytes"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with two sources of texts, and a recipe of the same dataset for each."""
    for source in ("novels", "laws"):
        (tmp_path / source).mkdir()
        for number in range(3):
            (tmp_path / source / f"{number}.txt").write_text(f"text {number} of {source}\n" * 50)
        (tmp_path / f"{source}.toml").write_text(RECIPE.format(source=source))
    return tmp_path


def kept(place: Path) -> dict[str, bytes]:
    """The contents of all files below the root, except the logs of runs and the stored hashes."""
    files = [path for path in (place / "data").rglob("*") if path.is_file() and not {"runs", ".cache"} & {*path.parts}]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def test_the_previous_release_and_this_version_share_a_root(place: Path) -> None:
    previous = previous_release(place / "previous")
    running = [start(version, "run", "novels.toml", cwd=place) for version in (previous, REPOSITORY)]
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert call(REPOSITORY, "run", "novels.toml", cwd=place).returncode == 0  # latest.json names the last run's steps
    before = kept(place)
    for version in (previous, REPOSITORY):
        for words in (["run", "novels.toml"], ["status", "data"], ["gc", "data", "--delete", "--older-than", "0"]):
            done = call(version, *words, cwd=place)
            assert done.returncode == 0, done.stderr
    assert kept(place) == before
    assert require_intact(datakit.open_cache(str(place / "data" / "made"))) > 0


@pytest.mark.parametrize("first", ["previous", "this"])
def test_either_version_continues_its_step_after_the_other_has_run(place: Path, first: str) -> None:
    """Their formats differ, so each version makes its own steps."""
    previous = previous_release(place / "previous")
    one, other = (previous, REPOSITORY) if first == "previous" else (REPOSITORY, previous)
    assert call(one, "run", "novels.toml", cwd=place).returncode == 0
    (step,) = (place / "data" / "made").glob("tokenize-*")
    manifest = (step / "manifest.json").read_bytes()
    (step / "manifest.json").unlink()
    for version in (other, one):
        assert not (step / "manifest.json").exists()
        done = call(version, "run", "novels.toml", cwd=place)
        assert done.returncode == 0, done.stderr
    assert (step / "manifest.json").read_bytes() == manifest
    assert len([line for line in read_ledger(str(step)) if isinstance(line, AttemptLine)]) == 2, "nothing ran again"


def test_lines_of_a_newer_version_are_skipped_with_a_note(place: Path) -> None:
    newer = newer_version(place / "newer", NEWER_LEDGER)
    done = call(newer, "run", "novels.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert '"comment": "new"' in next((place / "data" / "made").glob("tokenize-*/manifest.json")).read_text()
    assert call(REPOSITORY, "run", "novels.toml", cwd=place).returncode == 0, "an unknown field is harmless"
    (step,) = (place / "data" / "made").glob("tokenize-*")
    (step / "manifest.json").unlink()
    assert sum(isinstance(line, UnknownLine) for line in read_ledger(str(step))) == 2
    note = f"2 lines in {step}/ledger skipped: a newer version of datakit wrote them"
    for words in (["status", "data"], ["gc", "data"], ["run", "novels.toml"]):
        done = call(REPOSITORY, *words, cwd=place)
        assert done.returncode == 0, done.stderr
        assert (note in " ".join(done.stderr.split())) == (words[0] != "gc"), done.stderr
    assert sum(isinstance(line, AttemptLine) for line in read_ledger(str(step))) == 2, "nothing ran again"


def test_steps_in_a_newer_format_are_refused_and_kept(place: Path) -> None:
    newer = newer_version(place / "newer", NEWER_FORMATS)
    done = call(newer, "run", "novels.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    before = kept(place)
    cache = next((place / "data" / "made").glob("tokenize-*"))
    for words in (["run", "novels.toml"], ["plan", "novels.toml"], ["validate", cache], ["cache", "show", cache]):
        done = call(REPOSITORY, *words, cwd=place)
        shown = " ".join(done.stderr.split())
        assert "was written by a newer version of datakit (its format is datakit.manifest/3; this version" in shown
        assert "use that version, or another root, and keep the file" in shown
        assert done.returncode == 2, shown
    for words in (["status", "data"], ["ls", "data"]):
        done = call(REPOSITORY, *words, cwd=place)
        assert (done.returncode, "newer" in done.stdout) == (0, True), done.stderr
    done = call(REPOSITORY, "gc", "data", "--delete", "--older-than", "0", cwd=place)
    shown = " ".join(done.stderr.split())
    assert (done.returncode, "nothing is removed" in shown, "newer version of datakit" in shown) == (1, True, True), (
        shown
    )
    assert kept(place) == before
    assert call(newer, "run", "novels.toml", cwd=place).returncode == 0


def test_another_recipe_without_common_steps_runs_beside_newer_steps(place: Path) -> None:
    newer = newer_version(place / "newer", NEWER_FORMATS)
    assert call(newer, "run", "novels.toml", cwd=place).returncode == 0
    before = kept(place)
    # other settings of the tokenizer, because the contract of the same settings would be the newer version's step
    done = call(REPOSITORY, "run", "laws.toml", "--set", "tokenize.add=none", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "is not recorded as current: " in " ".join(done.stderr.split())
    after = kept(place)
    assert {path: after[path] for path in before} == before
