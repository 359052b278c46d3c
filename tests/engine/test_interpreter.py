"""Interpreters that datakit starts import from the driver's import path alone, never from the working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults.hostile_modules import plant
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root

SERVERS = """
import json, sys
from datakit.engine.interpreter import import_path
from datakit.engine.worker.forkserver_client import ForkServerPool
from datakit.engine.task import Preload
sys.path[1:1] = sys.argv[1:]
pool = ForkServerPool()
with pool.use((Preload("tests.support.engine.import_paths", "tests.support.engine.import_paths:write", ("found",)),)):
    pass
pool.close()
print(json.dumps(import_path()))
"""
REMOTE = """
import sys
from datakit.tokenize.encoders.tokenizer import _read
print(len(_read(sys.argv[1])))
"""


def start(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory that is not on its import path."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_run_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    imported = plant(tmp_path / "here")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("some text\n")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'name = "made"\n[[sources]]\nname = "texts"\nurl = "texts"\nformat = "text"\n[dedup]\n'
        '[tokenize]\ntokenizer = "bytes"\n'
    )
    done = start("-m", "datakit", "run", str(recipe), "--root", str(tmp_path / "root"), cwd=tmp_path / "here")
    assert imported() == []
    assert done.returncode == 0, done.stderr


def test_a_remote_tokenizer_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    imported = plant(tmp_path / "here")
    with s3_root() as root:
        from datakit.storage import atomic, urls

        atomic.commit_bytes(b"{}", urls.join(root, "tokenizer.json"))
        done = start("-c", REMOTE, urls.join(root, "tokenizer.json"), cwd=tmp_path / "here")
    assert imported() == []
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.parametrize("names", [[], ["with:colon", "with\nline", "plain"]])
def test_children_have_the_import_path_of_the_driver(tmp_path: Path, names: list[str]) -> None:
    folders = [str(tmp_path / name) for name in names]
    done = start("-c", SERVERS, *folders, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    paths = json.loads(done.stdout)
    assert set(folders) <= set(paths)
    assert json.loads((tmp_path / "found").read_text()) == paths


def test_a_driver_that_imports_from_the_working_directory_shares_it(tmp_path: Path) -> None:
    """As in a notebook, where `import my_filters` finds the file beside it."""
    program = f"import sys; sys.path.insert(0, ''){SERVERS}"
    assert start("-c", program, cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "found").read_text())[0] == str(tmp_path)
