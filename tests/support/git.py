"""Runs the program `git` to make repositories for tests, and fetches a repository as a task of download does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from datakit.download.git.steps import LISTED_AS_LEFT_OUT, fetch_repository
from datakit.engine.task import TaskContext

Fetched = tuple[list[dict[str, Any]], dict[str, str], dict[str, int]]


def git_bytes(folder: Path, *arguments: str, **environment: str) -> bytes:
    """Run `git` in a folder, with further variables in its environment. Return what it writes."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, env=os.environ | environment).stdout


def git(folder: Path, *arguments: str, **environment: str) -> str:
    """Run `git`, and return what it writes as text, without spaces around it."""
    return git_bytes(folder, *arguments, **environment).decode().strip()


def fetched(tmp_path: Path, url: str, commit: str, schema: pa.Schema, **arguments: Any) -> Fetched:
    """Fetch a repository at a commit. Return the rows of the file, why others are left out, and the counters."""
    arguments = {"url": url, "commit": commit, "path": "raw/repo.parquet", "include": [], "exclude": [], **arguments}
    step, scratch = tmp_path / "step", tmp_path / "scratch"
    shutil.rmtree(step, ignore_errors=True)
    scratch.mkdir(exist_ok=True)
    result = fetch_repository(arguments, {}, TaskContext(str(step), scratch))
    assert not list(scratch.iterdir())
    table = pq.read_table(step / "raw" / "repo.parquet")
    assert table.schema.equals(schema)
    left_out = pq.read_table(step / LISTED_AS_LEFT_OUT).to_pylist()
    rows = table.set_column(1, "text", table.column("text").combine_chunks().view("large_binary")).to_pylist()
    return rows, {row["path"]: row["reason"] for row in left_out}, dict(result.counters)
