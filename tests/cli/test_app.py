"""The command line: help, exit codes, what goes to stdout, and one clear line for every mistake."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.errors import NoSpaceError
from datakit.pipeline.schedule import graph_run
from tests.support.command_line import command, invoke
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import make_shelf

COMMANDS = ["run", "plan", "status", "inspect", "init", "catalog", "gc", "doctor", "tokenizer"]
GROUPS = ("catalog", "tokenizer")  # of commands


def test_command_runs_as_a_module_with_its_exit_code(tmp_path: Path) -> None:
    assert command("catalog", "list", cwd=tmp_path).returncode == 0
    refused = command("catalog", "recipe", "dmeo", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr


def test_help_names_every_command_and_exit_code(tmp_path: Path) -> None:
    shown = invoke("--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in COMMANDS)
    for code in ("0  done", "1  failure", "2  usage", "3  partial", "130  interrupted", "143  terminated"):
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


@pytest.mark.parametrize("name", [*COMMANDS, "cache show", "validate", "train", "size"])
def test_help_breaks_lines_at_the_terminal_s_edge_alone(tmp_path: Path, name: str) -> None:
    shown = invoke(*name.split(), "--help", cwd=tmp_path, COLUMNS="2000").stdout
    description = shown.partition("Examples:")[0].partition("╭")[0].strip()
    assert all("\n" not in paragraph for paragraph in description.split("\n\n")[1:])
    assert not re.search(r"(?m)^│ {5,}\S", shown)


@pytest.mark.parametrize(
    "name", [*(name for name in COMMANDS if name not in GROUPS), "tokenizer train", "catalog show"]
)
def test_every_command_has_an_example(tmp_path: Path, name: str) -> None:
    shown = invoke(*name.split(), "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert f"  datakit {name}" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu", "demo"], 'Did you mean "run"'),
        (["run", "demo", "--freh"], "Did you mean --fresh"),
        (["run"], "requires an argument"),
        (["run", "demo", "--workers", "many"], "workers"),
        (["run", "demo", "--workers", "0"], "workers is 0; it must be at least 1"),
        (["run", "dmeo"], "did you mean 'demo'"),
        (["run", "absent.toml"], "absent.toml does not exist"),
        (["run", "demo", "--until", "tokenise"], "did you mean 'tokenize'"),
        (["run", "demo", "--set", "dedup.treshold=1"], "did you mean 'threshold'"),
        (["run", "demo", "--set", "nonsense"], "is not of the form"),
        (["plan", "demo", "--set", "sources.stdlib-cod.text=x"], "did you mean 'stdlib-code'"),
        (["catalog", "recipe", "dmeo"], "did you mean 'demo'"),
        (["status", "nowhere"], "contains no datakit step"),
        (["gc", "nowhere"], "does not exist"),
        (["tokenizer", "train"], "requires an argument"),
    ],
)
def test_usage_or_input_error_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = invoke(*arguments, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_empty_source_fails_before_anything_is_written(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    (recipe.parent / "novels" / "a.jsonl").unlink()
    refused = invoke("run", recipe, "--root", "root", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no file" in refused.stderr
    assert str(recipe.parent / "novels") in refused.stderr
    assert not (tmp_path / "root").exists()


def test_missing_text_column_is_named(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    refused = invoke("run", recipe, "--root", "root", "--set", "sources.letters.text=boddy", cwd=tmp_path)
    assert refused.returncode == 2
    assert "boddy" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_root_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    refused = invoke("run", make_shelf(tmp_path / "shelf"), "--root", "root", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"error: {tmp_path}/root: {tmp_path}/root is not a directory; choose another --root\n"


def test_debug_variable_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in invoke("run", "dmeo", cwd=tmp_path, DATAKIT_DEBUG="1").stderr


def test_full_disk_is_reported_without_a_hint_at_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise NoSpaceError("this run needs more space")

    monkeypatch.setattr(graph_run, "check_disk_space", refuse)
    refused = invoke("run", make_shelf(tmp_path / "shelf"), "--root", "root", cwd=tmp_path)
    assert refused.returncode == 1
    assert "error: this run needs more space\n" in refused.stderr and "DATAKIT_DEBUG" not in refused.stderr
