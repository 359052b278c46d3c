"""Simulates a training machine: an interpreter that finds only the libraries that docs/trainer.md installs.

    said = on_bare_machine("import datakit.loader; print('here')")

It refuses every other library in pyproject.toml, extras included, but not their shared dependencies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

from tests.support.paths import REPOSITORY
from tests.support.processes import fake_devices

TRANSITIVE = {"fsspec", "psutil"}  # dependencies of orbax-checkpoint
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def installed() -> set[str]:
    """Libraries that the command in docs/trainer.md installs in addition to datakit."""
    (line,) = re.findall(r"^    pip install (numpy .*)$", (REPOSITORY / "docs/trainer.md").read_text(), re.MULTILINE)
    return {_name(word.strip("'")) for word in line.split()}


def refused() -> set[str]:
    """Import names of all other libraries of datakit."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name != "dev"}
    every = {_name(line) for line in [*project["dependencies"], *(line for each in extras.values() for line in each)]}
    return {name.replace("-", "_") for name in every - installed() - TRANSITIVE - {"datakit"}}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0]


def on_bare_machine(script: str, *arguments: str) -> str:
    """Run a script there and return its output. Fails if the script fails."""
    command = [sys.executable, "-c", REFUSE.format(refused=sorted(refused())) + script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **fake_devices(1)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
