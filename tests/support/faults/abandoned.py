"""Leaves behind what killed processes leave behind, and runs programs in PID namespaces of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from datakit.storage import atomic, locks, stale_files
from tests.support.paths import REPOSITORY

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]


def unlocked_name(folder: Path, name: str) -> Path:
    """Return the path of a temporary file in `folder` whose owner worked on this machine and is dead."""
    return folder / atomic.temporary_name(name, locks.domain(str(folder)))


def abandoned_scratch(folder: Path, domain: str = "", prefix: str = stale_files.SCRATCH) -> Path:
    """Create a scratch directory in `folder` whose owner is dead. domain: the owner's lock domain; by default, ours."""
    directory = folder / f"{prefix}0123456789"
    directory.mkdir()
    directory.with_name(f"{directory.name}.{domain or locks.domain(str(folder))}.lock").touch()
    return directory


@cache
def namespaces_are_permitted() -> bool:
    """Return True if this user may create PID namespaces."""
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def in_namespace(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python code as process 1 of a new PID namespace, and wait for its first line of output. Skip the test if
    this user may not create PID namespaces.
    """
    if not namespaces_are_permitted():
        pytest.skip("this user may not create PID namespaces")
    return _started([*NAMESPACE, sys.executable], program, arguments, environment)


def in_this_namespace(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python code, and wait for its first line of output."""
    return _started([sys.executable], program, arguments, environment)


def _started(
    python: list[str], program: str, arguments: tuple[str, ...], environment: dict[str, str]
) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    process = subprocess.Popen([*python, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, env=variables)
    assert process.stdout is not None
    assert process.stdout.readline(), "the program ended too early"
    return process
