"""The recipe that `datakit init` writes for real files and for hostile trees runs as it is, or none is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import command, invoke
from tests.support.data import need_data
from tests.support.hostile.case import Case, Place
from tests.support.hostile.kinds import ALL

NORMALIZE = ("--root", "root", "--until", "normalize", "--workers", "1", "--json")
OFTEN = ("evals", "c4-sample")  # `make soak` tries all folders, and the whole data
FOLDERS = [*OFTEN, "text", "dolma-tests", "neardup", "decontamination", "pathological", ""]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.soak) for name in FOLDERS]
)
def test_real_folders_run_as_they_are(tmp_path: Path, name: str) -> None:
    written = invoke("init", need_data() / name, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    done = command("run", "recipe.toml", *NORMALIZE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "normalize" in {stage["stage"] for stage in json.loads(done.stdout)["stages"]}


@pytest.mark.soak
def test_pathological_files_run_after_init(tmp_path: Path) -> None:
    maker = need_data() / "pathological" / "mk_pathological.py"
    subprocess.run([sys.executable, maker, tmp_path / "files"], check=True, capture_output=True)
    written = command("init", "files", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    done = command("run", "recipe.toml", *NORMALIZE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (normalized,) = [one for one in json.loads(done.stdout)["stages"] if one["stage"] == "normalize"]
    assert normalized["rows_out"] > 2000


HOSTILE_OFTEN = ("json-types-change-by-line", "csv-quote-never-closed", "text-in-utf-16", "name-not-utf-8")


def hostile_cases() -> list[Any]:
    """The trees whose source is a folder `texts`; `make soak` tries all of them."""
    cases = [case for case in ALL if case.words[:2] == ("run", "r.toml") and "keys" not in case.name]
    return [pytest.param(case, marks=() if case.name in HOSTILE_OFTEN else pytest.mark.soak) for case in cases]


@pytest.mark.parametrize("case", hostile_cases(), ids=lambda case: case.name)
def test_hostile_tree_is_refused_or_runs_as_it_is(case: Case, tmp_path: Path, finished: Path) -> None:
    place = Place(tmp_path / "case", "document4711", "outside4711", lambda: finished, lambda: finished)
    place.make()
    case.build(place)
    if not (place.work / "texts").is_dir():
        pytest.skip("the case has no folder of texts")
    written = command("init", "texts", "--output", "i.toml", cwd=place.work)
    said = written.stdout + written.stderr
    assert written.returncode in ((0, 2) if case.name != "name-longer-than-a-path" else (1,)), said
    if written.returncode == 0:
        words = ("--root", str(tmp_path / "other-root"), "--until", "normalize", "--workers", "1")
        done = command("run", "i.toml", *words, cwd=place.work)
        assert done.returncode == 0, done.stderr
        said += (place.work / "i.toml").read_text()
    else:
        assert not (place.work / "i.toml").exists()
    assert "unexpected: a bug" not in said
    assert place.document not in said and place.outside_text not in said, "no text of a document is shown"
