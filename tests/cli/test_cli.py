"""The command line from outside: exit codes, what goes to stdout, one clear line for every mistake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_shelf import (
    REPOSITORY,
    command,
    finished,
    make_shelf,
    step,
)

__all__ = ["finished"]  # a fixture


COMMANDS = ["run", "plan", "status", "inspect", "catalog", "gc", "doctor", "tokenizer"]


# --- help


def test_help_names_every_command_and_exit_code(tmp_path: Path) -> None:
    shown = command("--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in COMMANDS)
    for code in ("0  done", "1  failure", "2  usage", "3  partial", "130  interrupted"):
        assert code in shown.stdout


def test_help_loads_nothing_heavy() -> None:
    script = """
import contextlib, io, sys
from datakit.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["--help"]) == 0
heavy = {"pyarrow", "numba", "duckdb", "numpy", "ray", "tokenizers", "tensorstore", "fsspec"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY)


@pytest.mark.parametrize("name", [*(name for name in COMMANDS if name != "tokenizer"), "tokenizer train"])
def test_every_command_has_an_example(tmp_path: Path, name: str) -> None:
    shown = command(*name.split(), "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert f"  datakit {name}" in shown.stdout


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu", "demo"], 'Did you mean "run"'),
        (["run", "demo", "--freh"], "Did you mean --fresh"),
        (["run"], "requires an argument"),
        (["run", "demo", "--workers", "many"], "workers"),
        (["run", "demo", "--workers", "0"], "workers is 0; it must be at least 1"),
        (["run", "dmeo"], "did you mean 'demo'"),
        (["run", "absent.toml"], "absent.toml is not there"),
        (["run", "demo", "--until", "tokenise"], "did you mean 'tokenize'"),
        (["run", "demo", "--set", "dedup.treshold=1"], "did you mean 'threshold'"),
        (["run", "demo", "--set", "nonsense"], "is not of the form"),
        (["plan", "demo", "--set", "sources.stdlib-cod.text=x"], "did you mean 'stdlib-code'"),
        (["catalog", "dmeo"], "did you mean 'demo'"),
        (["status", "nowhere"], "no step of datakit"),
        (["gc", "nowhere"], "is not there"),
        (["tokenizer", "train"], "requires an argument"),
    ],
)
def test_a_usage_or_input_error_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = command(*arguments, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_an_empty_source_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    (recipe.parent / "novels" / "a.jsonl").unlink()
    refused = command("run", recipe, "--root", "root", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no file" in refused.stderr
    assert str(recipe.parent / "novels") in refused.stderr
    assert not (tmp_path / "root").exists()


def test_a_missing_text_column_is_an_input_error_that_names_it(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    refused = command("run", recipe, "--root", "root", "--set", "sources.letters.text=boddy", cwd=tmp_path)
    assert refused.returncode == 2
    assert "boddy" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_root_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    refused = command("run", make_shelf(tmp_path / "shelf"), "--root", "root", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"error: {tmp_path}/root: {tmp_path}/root is not a directory; choose another --root\n"


def test_a_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    assert "Traceback" in command("run", "dmeo", cwd=tmp_path, DATAKIT_DEBUG="1").stderr


# --- inspect


def test_inspect_shows_lineage_up_to_the_raw_files(finished: Path) -> None:
    shown = command("inspect", "root/shelf", cwd=finished)
    assert shown.returncode == 0
    assert shown.stdout.startswith("tokenize of shelf")
    assert "download novels: 47.9 kB in 1 raw files: a.jsonl" in shown.stdout
    found = json.loads(command("inspect", "root/shelf", "--json", cwd=finished).stdout)
    assert {entry["stage"] for entry in found["lineage"]} == {
        "consolidate", "dedup", "normalize", "signatures", "download", "train-tokenizer",
    }  # fmt: skip
    assert all(entry["found"] for entry in found["lineage"])
    assert len(set(found["sample_ids"])) == 3


def test_inspect_takes_a_manifest_and_a_dataset_that_was_moved_in_part(finished: Path, tmp_path: Path) -> None:
    place = step(finished, "root/shelf/consolidate-*")
    found = json.loads(command("inspect", place / "manifest.json", "--json", cwd=finished).stdout)
    assert (found["stage"], found["rows"]) == ("consolidate", 143)
    assert [column["name"] for column in found["schema"]][:4] == ["id", "text", "source", "source_id"]
    alone = tmp_path / place.name
    shutil.copytree(place, alone)
    shown = command("inspect", alone, cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.count("not here") == 3


def test_inspect_drafts_a_recipe_that_runs_as_it_is(tmp_path: Path) -> None:
    make_shelf(tmp_path / "shelf")
    shown = command("inspect", "shelf/letters", cwd=tmp_path)
    assert shown.returncode == 0
    assert "body" in shown.stdout
    assert "word1" not in shown.stdout, "it never shows text"
    (tmp_path / "mine.toml").write_text(command("inspect", "shelf/letters", "--draft", cwd=tmp_path).stdout)
    assert 'text = "body"' in (tmp_path / "mine.toml").read_text()
    done = command("run", "mine.toml", "--root", "root", "--until", "normalize", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][-1]["rows_out"] == 50


def test_inspect_of_an_unfinished_step_says_so(finished: Path, tmp_path: Path) -> None:
    alone = tmp_path / "consolidate-0123456789ab"
    shutil.copytree(step(finished, "root/shelf/consolidate-*"), alone)
    (alone / "manifest.json").unlink()
    refused = command("inspect", alone, cwd=tmp_path)
    assert refused.returncode != 0
    assert "is not finished" in refused.stderr


# --- plan, catalog, status


def test_plan_shows_states_and_reasons(finished: Path) -> None:
    done = command("plan", "shelf/shelf.toml", "--root", "root", cwd=finished).stdout
    assert "10 steps, 10 done" in done
    assert "workers:" in done
    assert "memory:" in done
    assert "disk:    about 0 B needed" in done
    changed = command(
        "plan", "shelf/shelf.toml", "--root", "root", "--set", "dedup.threshold=0.5", "--json", cwd=finished
    )
    plan = json.loads(changed.stdout)
    assert [entry["stage"] for entry in plan["steps"] if entry["state"] == "to run"] == [
        "dedup", "consolidate", "train-tokenizer", "tokenize",
    ]  # fmt: skip


def test_the_catalog_lists_and_prints_recipes_that_can_be_changed(tmp_path: Path) -> None:
    listed = command("catalog", cwd=tmp_path).stdout
    assert "demo" in listed
    assert "fineweb-edu-10bt" in listed
    (tmp_path / "mine.toml").write_text(command("catalog", "demo", cwd=tmp_path).stdout)
    plan = json.loads(command("plan", "mine.toml", "--json", cwd=tmp_path).stdout)
    assert plan["dataset"] == "demo"
    recipes = json.loads(command("catalog", "--json", cwd=tmp_path).stdout)["recipes"]
    assert {"demo", "fineweb-edu-10bt"} <= {recipe["name"] for recipe in recipes}


def test_status_shows_every_task_of_a_finished_dataset(finished: Path) -> None:
    shown = command("status", "root", cwd=finished)
    assert shown.returncode == 0
    assert shown.stdout.count(": done, ") == 10
    steps = json.loads(command("status", "root", "--json", cwd=finished).stdout)["steps"]
    assert {task["state"] for entry in steps for task in entry["tasks"]} == {"done"}
    assert all(task["attempts"] == 1 for entry in steps for task in entry["tasks"])
