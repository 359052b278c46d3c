"""Runs datakit commands for tests: in this process, which is fast, or in one of their own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from datakit.cli import main
from tests.support.paths import REPOSITORY


def invoke(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `datakit ...` in this process. For what is about processes (signals, imports, limits) use `command`."""
    words, out, err = list(map(str, arguments)), io.StringIO(), io.StringIO()
    terminate = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        for name, value in {"COLUMNS": "200", **environment}.items():
            patch.setenv(name, value)
        try:
            code = main(words)
        except SystemExit as exit:
            code = exit.code
        finally:
            signal.signal(signal.SIGTERM, terminate)
    return subprocess.CompletedProcess(words, int(code or 0), out.getvalue(), err.getvalue())


def command(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `datakit ...` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "datakit", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
