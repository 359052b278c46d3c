"""Runs the command line in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from datakit.cli import main


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        code = main(arguments)
    except SystemExit as ended:  # as the console script does
        code = int(ended.code or 0)
    found = capsys.readouterr()
    return code, found.out, found.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON object that a command prints with --json."""
    code, out, _ = run_command(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)
