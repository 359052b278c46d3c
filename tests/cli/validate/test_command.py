"""Tests of `datakit validate`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from datakit.cli.console import WIDTH
from datakit.exit_codes import ExitCode
from tests.support.caches import make_cache
from tests.support.commands import run_command, run_json
from tests.support.partitions import words
from tests.support.small_shelf import step

TEXTS = {"novels": [*words(1, 60)], "laws": words(2, 30)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_cache(tmp_path_factory.mktemp("made"), TEXTS, bits=1))


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "validate", "--help")
    assert (code, out.count("  datakit validate ") >= 2) == (0, True)


def test_intact_cache_is_valid(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "validate", cache)
    assert (code, f"{cache}: intact: 1 step" in " ".join(out.split())) == (0, True)
    found = run_json(capsys, "validate", cache)
    assert (found["intact"], found["findings"], found["unfinished"]) == (True, [], [])
    (one,) = found["steps"]
    checks = {entry["check"]: entry for entry in one["checks"]}
    assert (one["stage"], checks["lists"]["compared"]) == ("tokenize", {"document": 90})
    assert checks["alignment"]["compared"] == {}
    assert "cannot be read" in checks["alignment"]["skipped"][0]


def test_table_marks_checks_that_compared_nothing(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_command(capsys, "validate", cache)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["encoding"][1:] == ["nothing", "-"], "a check that was left out does not look like one that passed"
    assert rows["lists"][1:] == ["90", "documents", "0"]


def test_all_damage_is_listed_with_remedies(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    data, listed = copy / "data/laws/shard-00000/c/0", copy / "data/novels/shard-00001.docs.parquet"
    data.write_bytes(b"\xff" + data.read_bytes()[1:])
    listed.unlink()
    code, out, err = run_command(capsys, "validate", str(copy))
    assert code == ExitCode.INVALID == 4
    assert "2 differences in" in err
    lines = out.splitlines()
    shown = [line for line in lines if line.endswith(" (files)")]
    assert shown == [f"{path.relative_to(copy)} (files)" for path in (listed, data)]
    assert " ".join(err.split()).count("if this is a copy, copy the cache again") == 1
    assert max(len(line) for line in [*lines, *err.splitlines()] if "/" not in line) <= WIDTH
    code, out, _ = run_command(capsys, "validate", str(copy), "--json")
    found = json.loads(out)
    assert (code, found["intact"]) == (4, False)
    assert {(Path(entry["url"]), entry["check"]) for entry in found["findings"]} == {(data, "files"), (listed, "files")}


def test_unfinished_step_is_refused(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    (copy / "manifest.json").unlink()
    code, _, err = run_command(capsys, "validate", str(copy))
    assert (code, "no finished step" in err) == (2, True)
    code, out, _ = run_command(capsys, "validate", str(copy), "--json")
    assert (code, "no finished step" in json.loads(out)["refused"]) == (2, True)


def test_several_directories_are_all_checked(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(cache, tmp_path / "copy"))
    (copy / "data/laws/shard-00000.lengths").unlink()
    (tmp_path / "empty").mkdir()
    code, out, err = run_command(capsys, "validate", str(copy), str(tmp_path / "empty"), cache)
    assert code == 4, "a difference counts for more than a directory with nothing to check"
    assert "1 difference in" in err and f"{tmp_path}/empty holds no finished step" in err
    assert f"{cache}: intact" in out
    assert run_command(capsys, "validate", cache, str(tmp_path / "empty"))[0] == 2
    code, out, _ = run_command(capsys, "validate", cache, str(copy), "--json")
    found = json.loads(out)
    assert (code, found["intact"], [one["intact"] for one in found["directories"]]) == (4, False, [True, False])
    assert run_command(capsys, "validate", cache, cache)[0] == 0
    assert run_command(capsys, "validate")[0] == 2


def test_dataset_stands_for_its_current_steps(finished_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf = finished_copy / "root" / "shelf"
    stages = [one["stage"] for one in run_json(capsys, "validate", str(shelf))["steps"]]
    assert stages[-6:] == ["dedup", "select", "consolidate", "train-tokenizer", "contract", "tokenize"]
    assert sorted(stages[:-6]) == [name for name in ("download", "normalize", "signatures") for _ in range(2)]
    shutil.copytree(step(shelf, "tokenize-*"), shelf / "tokenize-000000000000")
    assert len(run_json(capsys, "validate", str(shelf))["steps"]) == 12
    (shelf / "latest.json").unlink()
    code, _, err = run_command(capsys, "validate", str(shelf))
    assert (code, "name one of them" in err) == (2, True)


def test_last_line_says_how_many_steps_were_not_checked(
    finished_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished_copy / "root"
    (root / "shelf/consolidate-000000000000/ledger").mkdir(parents=True)
    code, out, _ = run_command(capsys, "validate", str(root))
    assert (code, " ".join(out.split()).endswith("; 1 unfinished step not checked")) == (0, True)


def test_training_step_needs_a_training_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = str(step(finished, "root/shelf/tokenize-*"))
    code, _, err = run_command(capsys, "validate", cache, "--training-step", "3")
    assert (code, "--training-step" in err) == (2, True)
