"""A run's directory records its settings, so that a command needs no run file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from datakit.errors import CorruptError, UsageError
from datakit.trainer.run_directory.run_record import FILE_NAME, is_run, root_of, write_run_record
from datakit.trainer.run_file import read_run_file


def test_a_record_gives_the_tables_back_and_takes_overrides(tmp_path: Path) -> None:
    directory, file = tmp_path / "data" / "small" / "train-1", tmp_path / "runs" / "small.toml"
    directory.mkdir(parents=True)
    write_run_record(str(directory), file, {"name": "small", "model": {"hidden": 32, "rope_theta": 1.0}}, {"seed": 3})
    read = read_run_file(directory, ["model.hidden=64"])
    assert read.path == file
    assert read.run_tables == {"name": "small", "model": {"hidden": 64, "rope_theta": 1.0}}
    assert read.data_table == {"seed": 3}
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "data").rename(moved / "data")
    assert read_run_file(moved / "data" / "small" / "train-1").path == moved / "runs" / "small.toml"


def test_infinity_is_recorded(tmp_path: Path) -> None:
    tables = {"name": "small", "norm_band": [0.2, math.inf], "log": {"spike": math.inf}}
    write_run_record(str(tmp_path), tmp_path / "run.toml", tables, {})
    assert read_run_file(tmp_path).run_tables == tables


def test_the_root_follows_from_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "small" / "train-1"
    directory.mkdir(parents=True)
    assert root_of("demo", "./data") == "./data"
    assert not is_run(directory)
    (directory / FILE_NAME).write_text("{}")
    assert root_of(directory, "./data") == str(tmp_path) == root_of(directory, str(tmp_path))
    with pytest.raises(UsageError, match="is in the root"):
        root_of(directory, "/elsewhere")


def test_a_missing_or_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "caches.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has no run\.json; give the run file"):
        read_run_file(tmp_path)
    for damaged in (b'{"file": 1}', b"{", b'{"file": "\xff"}', b"[" * 100_000):
        (tmp_path / FILE_NAME).write_bytes(damaged)
        with pytest.raises(CorruptError, match="cannot be read"):
            read_run_file(tmp_path)
