"""`datakit du` counts every file once, and each of its tables adds up to the whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from datakit.retention.usage import disk_use
from tests.support.command_line import invoke
from tests.support.retention.tiny_roots import step_path, write_dataset, write_training_run
from tests.support.s3 import s3_root

FIELDS = ("dataset", "stage", "source", "age")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with steps, logs, a training run, trash, and a file of somebody else."""
    root = tmp_path / "root"
    write_dataset(str(root), "shelf", sources=("web", "books"))
    write_training_run(str(root), "model", [step_path("shelf", "tokenize", "0")])
    for path in ("shelf/runs/x/events.jsonl", ".trash/2026-01-01/shelf/dedup-000000000000/x", ".cache/x", "notes.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("12345")
    return root


def test_each_table_adds_up_to_the_size_of_all_files(root: Path) -> None:
    (root / "link").symlink_to("/")
    paths = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    found = disk_use(str(root))
    assert (found.files, found.bytes) == (len(paths), sum(path.lstat().st_size for path in paths))
    for field in FIELDS:
        counts = found.by(field).values()
        assert (sum(n for n, _ in counts), sum(size for _, size in counts)) == (found.files, found.bytes)


def test_bytes_of_a_file_with_two_names_count_once_and_for_the_source(root: Path) -> None:
    original = next((root / "sources/web").glob("normalize-*/data/all/part"))
    before = disk_use(str(root))
    for name in ("another", "shelf"):
        (root / name).mkdir(exist_ok=True)
        os.link(original, root / name / "linked")
    after = disk_use(str(root))
    assert (after.files, after.bytes) == (before.files + 2, before.bytes)
    assert after.by("stage")["normalize"] == before.by("stage")["normalize"]


def test_files_count_for_their_dataset_stage_and_source(root: Path) -> None:
    found = disk_use(str(root))
    assert set(found.by("dataset")) == {
        "shelf", "model", "(shared sources)", "(trash)", "(datakit's own files)", "(other)",
    }  # fmt: skip
    assert found.by("stage")["(logs)"] == (1, 5)
    assert found.by("stage")["(trash)"] == (1, 5)
    assert {"download", "normalize", "dedup", "tokenize", "train"} <= set(found.by("stage"))
    assert {"web", "books", "(all)"} <= set(found.by("source"))


def test_age_is_that_of_the_newest_file_of_a_step(root: Path) -> None:
    step = root / step_path("shelf", "dedup", "0")
    for path in step.rglob("*"):
        os.utime(path, (0, 0))
    assert disk_use(str(root)).by("age").keys() == {"under a day", "a year or more"}
    os.utime(step / "manifest.json")
    assert disk_use(str(root)).by("age").keys() == {"under a day"}


def test_command_prints_tables_and_json(root: Path) -> None:
    shown = invoke("du", "root", cwd=root.parent)
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines() if "files" in line and "size" in line] == [*FIELDS]
    found = json.loads(invoke("du", "root", "--json", cwd=root.parent).stdout)
    assert found["bytes"] == sum(entry["bytes"] for entry in found["entries"])
    assert found["stage"]["(logs)"] == {"files": 1, "bytes": 5}


def test_wrong_root_is_refused(tmp_path: Path) -> None:
    assert invoke("du", "nowhere", cwd=tmp_path).returncode == 2


def test_disk_use_is_measured_in_a_store() -> None:
    with s3_root() as root:
        write_dataset(root, "shelf")
        found = disk_use(root)
        assert found.files == 13
        assert set(found.by("age")) == {"under a day"}
