"""`datakit inspect` shows what a step or a raw source contains, and never its text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from datakit.text.compilation import NOTICE
from tests.support.command_line import invoke
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import make_shelf, step


def test_inspect_shows_lineage_up_to_the_raw_files(finished: Path) -> None:
    shown = invoke("inspect", "root/shelf", cwd=finished)
    assert shown.returncode == 0
    assert shown.stdout.startswith("tokenize of shelf")
    assert "download novels: 47.9 kB in 1 raw file: a.jsonl" in shown.stdout
    found = json.loads(invoke("inspect", "root/shelf", "--json", cwd=finished).stdout)
    assert {entry["stage"] for entry in found["lineage"]} == {
        "select", "dedup", "normalize", "signatures", "download", "train-tokenizer", "contract",
    }  # fmt: skip
    assert all(entry["found"] for entry in found["lineage"])
    assert len(set(found["sample_ids"])) == 3


def test_inspect_reads_a_manifest_and_a_lone_step(finished: Path, tmp_path: Path) -> None:
    place = step(finished, "root/shelf/consolidate-*")
    found = json.loads(invoke("inspect", place / "manifest.json", "--json", cwd=finished).stdout)
    assert (found["stage"], found["rows"]) == ("consolidate", 143)
    assert [column["name"] for column in found["schema"]][:4] == ["id", "text", "source", "source_id"]
    alone = tmp_path / place.name
    shutil.copytree(place, alone)
    shown = invoke("inspect", alone, cwd=tmp_path)
    assert shown.returncode == 0
    assert " ".join(shown.stdout.split()).count(": missing (") == 3


def test_drafted_recipe_runs_unchanged(tmp_path: Path) -> None:
    make_shelf(tmp_path / "shelf")
    shown = invoke("inspect", "shelf/letters", cwd=tmp_path)
    assert shown.returncode == 0
    assert "body" in shown.stdout
    assert "word1" not in shown.stdout, "text is never shown"
    (tmp_path / "mine.toml").write_text(invoke("inspect", "shelf/letters", "--draft", cwd=tmp_path).stdout)
    assert 'text = "body"' in (tmp_path / "mine.toml").read_text()
    done = invoke("run", "mine.toml", "--root", "root", "--until", "normalize", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][-1]["rows_out"] == 50


def test_draft_of_damaged_files_names_the_problems_and_runs(tmp_path: Path) -> None:
    (tmp_path / "forum.jsonl").write_text('{"text": "one"}\n{"text": "two"}\nno record\n')
    drafted = invoke("inspect", "forum.jsonl", "--draft", cwd=tmp_path)
    assert "problem: " in drafted.stderr and "forum.jsonl:32: not JSON" in drafted.stderr
    (tmp_path / "r.toml").write_text(drafted.stdout)
    ran = invoke("run", "r.toml", "--root", "root", "--until", "normalize", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (listed,) = (tmp_path / "root").glob("sources/*/normalize-*/quarantine/records.jsonl")
    assert f"normalize forum: 1 record could not be used and was left out:\n    {listed}\n" in ran.stdout


def test_inspect_of_a_single_file(tmp_path: Path) -> None:
    make_shelf(tmp_path / "shelf")
    shown = invoke("inspect", "shelf/letters/b.jsonl", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "b: 1 json file (.jsonl)" in shown.stdout
    assert 'url = "shelf/letters/b.jsonl"' in shown.stdout


def test_inspect_rejects_an_unfinished_step(finished: Path, tmp_path: Path) -> None:
    alone = tmp_path / "consolidate-0123456789ab"
    shutil.copytree(step(finished, "root/shelf/consolidate-*"), alone)
    (alone / "manifest.json").unlink()
    refused = invoke("inspect", alone, cwd=tmp_path)
    assert refused.returncode != 0
    assert "is not finished" in refused.stderr


COMPILES = """
import sys
from numba import njit
from datakit.cli.app import main
from datakit.normalize import warm_kernels
warm = warm_kernels.warm
warm_kernels.warm = lambda: (warm(), njit(lambda number: number)(1), njit(lambda number: number + 1)(1))
main(["inspect", sys.argv[1]])
"""


def test_compilation_is_announced_once(tmp_path: Path) -> None:
    """On a machine that has not run the kernels yet, inspecting a file takes up to a minute."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    command = [sys.executable, "-c", COMPILES, "a.jsonl"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count(NOTICE) == 1
    assert invoke("inspect", "a.jsonl", cwd=tmp_path).stderr.count(NOTICE) == 0
