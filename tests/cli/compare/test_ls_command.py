"""`datakit ls` tells which steps are current: those of each dataset's last complete run, and all behind them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import datakit
from datakit.api import ls
from datakit.errors import InputError
from tests.support.command_line import invoke
from tests.support.small_shelf import step


def states(place: Path) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for one in ls(place).steps:
        found.setdefault(one.stage, Counter())[one.state] += 1
    return found


def test_steps_of_an_earlier_run_are_superseded(finished_copy: Path) -> None:
    recipe, root = finished_copy / "shelf" / "shelf.toml", finished_copy / "root"
    assert {state for counts in states(root).values() for state in counts} == {"current"}
    datakit.run(recipe, root, workers=1, settings=["dedup.threshold=0.97"], until="consolidate")
    found = states(root)
    assert found["dedup"] == {"current": 2}, "the last cache stays current, with everything behind it"
    assert found["tokenize"] == {"current": 1}
    datakit.run(recipe, root, workers=1)
    assert states(root)["dedup"] == {"current": 1, "superseded": 1}
    assert states(root)["normalize"] == {"current": 2}


def test_dataset_and_source_show_their_own_steps(finished: Path) -> None:
    shelf, novels = (ls(finished / "root" / place) for place in ("shelf", "sources/novels"))
    assert {one.stage for one in shelf.steps} == {
        "dedup",
        "select",
        "consolidate",
        "train-tokenizer",
        "contract",
        "tokenize",
    }
    assert {(one.stage, one.dataset, one.state) for one in novels.steps} == {
        (stage, "novels", "current") for stage in ("download", "normalize", "signatures")
    }
    (cache,) = [one for one in shelf.steps if one.stage == "tokenize"]
    assert cache.totals is not None and cache.totals.rows == 143 and cache.totals.tokens
    with pytest.raises(InputError, match="contains no datakit step"):
        ls(finished / "shelf")


def test_rows_of_downloads_are_a_dash(finished: Path) -> None:
    shown = invoke("ls", "root/sources/novels", cwd=finished).stdout.splitlines()
    rows = {line.split("-")[0]: line.split()[4] for line in shown[2:]}
    assert rows == {"download": "-", "normalize": "97", "signatures": "97"}


def test_undecided_and_unfinished_steps_are_not_called_superseded(finished_copy: Path) -> None:
    root = finished_copy / "root"
    latest = root / "shelf" / "latest.json"
    latest.write_text(latest.read_text().replace("tokenize-", "tokenize-0"))
    found = ls(root)
    assert {one.state for one in found.steps} == {"undecided"}
    assert "is unfinished or missing" in found.problems[0]
    latest.unlink()
    (step(finished_copy, "root/shelf/tokenize-*") / "manifest.json").unlink()
    assert states(root)["tokenize"] == {"unfinished": 1}
    assert states(root)["consolidate"] == states(root)["contract"] == {"current": 1}


def test_output_is_a_table_or_json(finished: Path) -> None:
    shown = invoke("ls", "root", cwd=finished)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("recipe shelf: ") and sum(line.startswith("source ") for line in lines) == 2
    (row,) = [line.split() for line in lines if line.startswith("tokenize-")]
    assert (row[4], row[-1]) == ("143", "current")
    assert "look at a cache: datakit inspect" in shown.stderr
    found = json.loads(invoke("ls", "root/shelf", "--json", cwd=finished).stdout)
    assert {one["stage"] for one in found["steps"]} == {
        "dedup",
        "select",
        "consolidate",
        "train-tokenizer",
        "contract",
        "tokenize",
    }
