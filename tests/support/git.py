"""Runs the program `git` to make repositories for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git_bytes(folder: Path, *arguments: str, **environment: str) -> bytes:
    """Run `git` in a folder, with further variables in its environment. Return what it writes."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, env=os.environ | environment).stdout


def git(folder: Path, *arguments: str, **environment: str) -> str:
    """Run `git`, and return what it writes as text, without spaces around it."""
    return git_bytes(folder, *arguments, **environment).decode().strip()
