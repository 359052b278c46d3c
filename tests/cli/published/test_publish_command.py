"""`datakit publish` shows what it would do, asks, and ends with where the result is."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.publish.record import FILE_NAME
from tests.support.command_line import command, invoke
from tests.support.hub_upload.server import hub_server
from tests.support.paths import REPOSITORY
from tests.support.published.shelf import SOURCES, dataset

__all__ = ["dataset"]  # a fixture


def test_it_ends_with_the_place_the_revision_and_a_way_to_read_it(dataset: Path, tmp_path: Path) -> None:
    shown = invoke("publish", dataset, "out", "--yes", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == str(tmp_path / "out")
    assert "7 files new or changed" in shown.stderr
    assert f'datasets.load_dataset("{tmp_path}/out", "novels")' in shown.stderr
    for expected in ("CC-BY-4.0", "email masked", "source_id (string)", "1,797 documents of 3 sources"):
        assert expected in " ".join(shown.stdout.split()), expected
    assert "word1" not in shown.stdout + shown.stderr, "no text of a document is shown"
    assert max(map(len, shown.stdout.splitlines()[:-2])) <= 80


def test_dry_run_lists_the_files_and_writes_nothing(dataset: Path, tmp_path: Path) -> None:
    shown = invoke("publish", dataset, "out", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0 and "data/novels/part-00000-of-00001.parquet" in shown.stdout
    assert not (tmp_path / "out").exists()
    found = json.loads(invoke("publish", dataset, "out", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert len(found["missing"]) == 7 and found["holds"] is None
    assert not (tmp_path / "out").exists()


def test_json_is_one_object(dataset: Path, tmp_path: Path) -> None:
    shown = invoke("publish", dataset, "out", "--yes", "--json", cwd=tmp_path)
    found = json.loads(shown.stdout)
    assert set(found["columns"]) == set(found["licenses"]) == set(found["personal_data"]) == set(SOURCES)
    again = json.loads(invoke("publish", dataset, "out", "--yes", "--json", cwd=tmp_path).stdout)
    assert again["missing"] == [] and again["revision"] == found["revision"] == again["holds"]


def test_visibility_on_the_hub_is_shown(dataset: Path, tmp_path: Path) -> None:
    with hub_server() as hub:
        for option, expected in ((), "private"), (("--public",), "public"):
            shown = invoke("publish", dataset, "hf://datasets/org/a", "--dry-run", *option, cwd=tmp_path)
            assert shown.returncode == 0, shown.stderr
            assert f" kB; {expected}" in shown.stdout
        assert hub.hub.repositories == {}, "a dry run creates nothing"


def test_scripts_must_say_yes(dataset: Path, tmp_path: Path) -> None:
    shown = command("publish", dataset, "out", cwd=tmp_path)
    assert shown.returncode == 2 and "there is no terminal to ask on; add --yes" in shown.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("answer", "code"), [(b"yes\n", 0), (b"no\n", 2), (b"\n", 2)])
def test_a_person_is_asked(dataset: Path, tmp_path: Path, answer: bytes, code: int) -> None:
    leader, follower = pty.openpty()
    arguments = [sys.executable, "-m", "datakit", "publish", str(dataset), "out"]
    process = subprocess.Popen(
        arguments, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    os.write(leader, answer)
    _, err = process.communicate(timeout=120)
    os.close(leader)
    os.close(follower)
    assert process.returncode == code, err
    assert b"Type yes" in err
    assert (tmp_path / "out" / FILE_NAME).exists() == (code == 0)


def test_options_without_effect_and_missing_licenses_are_refused(dataset: Path, finished: Path, tmp_path: Path) -> None:
    shown = invoke("publish", dataset, "out", "--public", "--yes", cwd=tmp_path)
    assert shown.returncode == 2 and "--public has no effect on out" in shown.stderr
    shown = invoke("publish", finished / "root" / "shelf", "out", "--yes", cwd=tmp_path)
    assert shown.returncode == 2 and "the license of source 'novels' is not known" in shown.stderr
    shown = invoke("publish", dataset, "nowhere://host/x", "--yes", cwd=tmp_path)
    assert shown.returncode == 2 and "unknown protocol nowhere://" in shown.stderr
    shown = invoke("publish", dataset, "https://host/x", "--yes", cwd=tmp_path)
    assert shown.returncode == 2 and "a web server, which cannot be written" in shown.stderr


def test_a_missing_token_is_named(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    shown = invoke("publish", dataset, "hf://datasets/a/b", "--yes", cwd=tmp_path)
    assert shown.returncode == 2 and "environment variable HF_TOKEN" in shown.stderr
