"""A process that validates loads no library that it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PROGRAM = """
import sys
from datakit.cli import main
code = main(["validate", sys.argv[1], "--deep"])
print([name for name in ("pandas", "numba", "jax", "ray") if name in sys.modules])
import pandas
sys.exit(code)
"""


def test_validation_loads_no_heavy_library(finished: Path) -> None:
    pytest.importorskip("pandas")
    words = [sys.executable, "-c", PROGRAM, str(finished / "root")]
    done = subprocess.run(words, env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]", "and pandas can still be imported afterwards"
