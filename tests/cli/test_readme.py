"""README.md's commands and code run exactly as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from datakit.storage.latest import current_cache, current_step
from datakit.storage.manifest import read_manifest
from tests.support.paths import REPOSITORY
from tests.support.release import readme

ELSEWHERE = {  # commands that cannot run here, with the reason
    "pip install .": "`make wheel-check` installs the wheel in an empty environment",
    "pip install '.[ray,s3]'": "`make locked` installs all extras",
    "pip install '.[train]'": "`make locked` installs all extras",
    "pip install '.[report]'": "`make locked` installs all extras",
    "pip install '.[serve]'": "`make locked` installs all extras",
    "pip install '.[metrics]'": "`make locked` installs all extras",
    "pip install '.[language]'": "`make locked` installs all extras",
    "pip install '.[classifier]'": "`make locked` installs all extras",
    "pip install '.[onnx]'": "`make locked` installs all extras",
    "pip install '.[web]'": "`make locked` installs all extras",
    "pip install '.[chat]'": "`make locked` installs all extras",
    "pip install '.[gpu]'": "needs a GPU; `make gpu-check` installs it",
    "datakit train --flops 1e18 --hidden 512 --cache data/books": "takes days; test_commands.py trains a small one",
    "datakit ferry run smoke --first": "tests/ferries/test_catalog.py runs it",
    "datakit doctor --root s3://bucket/data --ray host:6379": "needs a cluster; tests/doctor starts one",
    "datakit run recipe.toml --root s3://bucket/data --ray host:6379": "needs a cluster and a store; tests/engine",
}

NOT_FOR_USERS = {"dev", "release"}


def test_install_section_names_every_extra() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Install")[2].partition("\n## ")[0]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {name for name in extras if not re.search(rf"\b{name}\b", section)} == NOT_FOR_USERS


def bare(command: str) -> str:
    """A command without its comment."""
    return command.partition("  #")[0].strip()


HERE = [command for command in readme.commands() if bare(command) not in ELSEWHERE]
PLAIN = [command for command in HERE if not bare(command).startswith("datakit run demo")]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with the files that the commands name, and the shell's environment. The commands run in order."""
    folder = tmp_path_factory.mktemp("readme")
    readme.write_scene(folder)
    return folder, readme.environment(folder)


def shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command line, and return what it prints. It must succeed."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def filled_in(command: str, folder: Path) -> str:
    """A command with its three placeholders replaced; all other text stays as it is printed."""
    dataset = str(folder / "data" / "shelf")
    if not any(mark in command for mark in ("OLD-STEP", " ID", "<cache>")):
        return command
    last, cache = current_step(dataset), current_cache(dataset)
    assert last and cache
    documents = read_manifest(cache[0]).inputs[0].path
    first = read_manifest(str(Path(cache[0], documents).parent)).partitions[0].first_id
    return command.replace("OLD-STEP", last[0]).replace(" ID", f" {first}").replace("<cache>", cache[0])


def test_every_command_runs_or_has_a_reason() -> None:
    assert set(ELSEWHERE) <= {bare(command) for command in readme.commands()}, "the list has no stale entry"
    assert len(HERE) >= 16


@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize("command", PLAIN, ids=bare)
def test_command_runs_as_printed(scene: tuple[Path, dict[str, str]], command: str) -> None:
    folder, environment = scene
    shell(filled_in(command, folder), folder, environment)


@pytest.mark.xdist_group("readme")
def test_python_code_runs_as_printed(scene: tuple[Path, dict[str, str]]) -> None:
    folder, environment = scene
    code = readme.block_with("import datakit") + "\nassert batch.tokens.shape == (8, 4096)\n"
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)


@pytest.mark.soak
def test_demo_runs_as_printed(tmp_path: Path) -> None:
    (command,) = (command for command in HERE if bare(command) == "datakit run demo")
    assert "demo: done in" in shell(command, tmp_path, readme.environment(tmp_path))
