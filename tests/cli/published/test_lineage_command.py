"""`datakit lineage` prints what a dataset was made from, in five formats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from datakit.storage.manifest import read_manifest
from tests.support.command_line import invoke
from tests.support.small_shelf import step


def test_text_names_sources_steps_parameters_and_versions(finished: Path) -> None:
    shown = invoke("lineage", "root/shelf", cwd=finished)
    assert shown.returncode == 0, shown.stderr
    for expected in ("novels", "not stated", "threshold = 0.8", "made with: python", "normalize/records_in 100"):
        assert expected in " ".join(shown.stdout.split()), expected
    assert "word1" not in shown.stdout, "no text of a document is shown"


def test_json_holds_every_step_and_its_hashes(finished: Path) -> None:
    found = json.loads(invoke("lineage", "root/shelf", "--format", "json", cwd=finished).stdout)
    assert len(found["steps"]) == 12 and len(found["sources"]) == 2
    for one in found["steps"]:
        assert one["checksum"] == read_manifest(one["directory"]).checksum


def test_every_format_is_printed(finished: Path) -> None:
    starts = {"mermaid": "flowchart LR\n", "openlineage": "{", "croissant": "{\n", "text": "tokenize of shelf"}
    for name, start in starts.items():
        shown = invoke("lineage", "root/shelf", "--format", name, cwd=finished)
        assert shown.returncode == 0 and shown.stdout.startswith(start), name
    events = invoke("lineage", "root/shelf", "--format", "openlineage", cwd=finished).stdout.splitlines()
    assert len([json.loads(line) for line in events]) == 24


def test_missing_step_is_reported(finished_copy: Path) -> None:
    place = step(finished_copy, "root/shelf/dedup-*")
    shutil.rmtree(place)
    shown = invoke("lineage", "root/shelf", cwd=finished_copy)
    assert shown.returncode == 0
    assert f"is not in {place}; its own inputs are unknown" in shown.stderr


def test_folder_without_steps_is_a_mistake(tmp_path: Path) -> None:
    shown = invoke("lineage", tmp_path, cwd=tmp_path)
    assert shown.returncode == 2 and "contains no finished step" in shown.stderr
