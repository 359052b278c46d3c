"""Compiling a kernel is announced; loading it from disk is not. A fork compiles only what is not on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

SCRIPT = """
from datakit.normalize import kernels  # imports numba
from datakit.text.compilation import announced
from tests.support.engine.compiled_example import increased
said = []
with announced(lambda: said.append(True)):
    increased(1)
    increased(2.0)
print(len(said))
"""

BESIDE = """
from datakit.text.compilation import compiled_beside
from tests.support.engine.compiled_example import increased
forks = []
def warm():
    forks.append(increased(1))
    print("forked", flush=True)
with compiled_beside(warm, increased):
    pass
increased(1)
print(len(forks), sum(increased.stats.cache_hits.values()), sum(increased.stats.cache_misses.values()))
"""


def output(script: str, cache: Path) -> list[str]:
    """Run a script with this folder for numba's disk cache; return the lines that it has printed."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


def test_only_the_first_compilation_is_announced(tmp_path: Path) -> None:
    assert output(SCRIPT, tmp_path) == ["1"]
    assert output(SCRIPT, tmp_path) == ["0"]


def test_fork_compiles_a_kernel_that_this_process_then_loads(tmp_path: Path) -> None:
    assert output(BESIDE, tmp_path) == ["forked", "0 1 0"], "the fork has compiled it, and this process has loaded it"
    assert output(BESIDE, tmp_path) == ["0 1 0"], "it is on disk, so nothing is forked"


def test_kernel_is_compiled_here_if_the_fork_fails(tmp_path: Path) -> None:
    failing = BESIDE.replace("    forks.append(increased(1))\n", "    import os; os._exit(1)\n")
    assert output(failing, tmp_path) == ["0 0 1"]


@pytest.mark.parametrize("module", ["datakit.normalize.warm_kernels", "datakit.dedup.warm_kernels"])
def test_importing_a_preload_imports_numba_so_that_its_compilation_can_be_announced(module: str) -> None:
    command = [sys.executable, "-c", f"import sys, {module}; print('numba' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout == "True\n"
