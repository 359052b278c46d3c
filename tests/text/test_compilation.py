"""Compiling a kernel is announced; loading it from disk is not."""

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


def test_only_the_first_compilation_is_announced(tmp_path: Path) -> None:
    def announcements() -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    assert announcements() == "1"
    assert announcements() == "0"


@pytest.mark.parametrize("module", ["datakit.normalize.warm_kernels", "datakit.dedup.warm_kernels"])
def test_importing_a_preload_imports_numba_so_that_its_compilation_can_be_announced(module: str) -> None:
    command = [sys.executable, "-c", f"import sys, {module}; print('numba' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout == "True\n"
