"""Every exit code has one number and one meaning, which the code, the help text and the pages share."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import datakit
from datakit.errors import DatakitError
from datakit.exit_codes import ExitCode
from tests.support.command_line import invoke
from tests.support.paths import REPOSITORY


def error_classes(kind: type[DatakitError] = DatakitError) -> Iterator[type[DatakitError]]:
    """Yield DatakitError and all its subclasses in datakit."""
    yield kind
    for one in kind.__subclasses__():
        yield from error_classes(one)


def test_every_error_class_has_exactly_one_exit_code() -> None:
    for module in pkgutil.walk_packages(datakit.__path__, "datakit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {kind for kind in error_classes() if kind.__module__.startswith("datakit.")}
    assert len(found) > 25 and any(not kind.__module__.endswith(".errors") for kind in found), "all modules are loaded"
    assert {kind.__name__: kind.exit_code for kind in found if not isinstance(kind.exit_code, ExitCode)} == {}
    assert {kind.exit_code for kind in found} == {
        ExitCode.FAILURE, ExitCode.USAGE, ExitCode.PARTIAL, ExitCode.DIVERGED,
    }  # fmt: skip


def test_codes_and_meanings_are_unique() -> None:
    assert (
        len(ExitCode.__members__) == len({int(code) for code in ExitCode}) == len({code.meaning for code in ExitCode})
    )


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_tables_of_exit_codes_are_those_of_the_code(page: str) -> None:
    text = (REPOSITORY / page).read_text().partition("\n## Exit codes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", text, re.MULTILINE)
    assert rows == [(str(int(code)), code.meaning) for code in ExitCode]


def test_help_lists_every_exit_code(tmp_path: Path) -> None:
    shown = invoke("--help", cwd=tmp_path, COLUMNS="80").stdout
    listed = re.findall(r"^ +(\d+)  (.+)$", shown.partition("Exit codes:\n")[2], re.MULTILINE)
    assert listed == [(str(int(code)), code.meaning) for code in ExitCode], "and no line is broken"


def test_code_of_a_refused_command_reaches_the_shell() -> None:
    script = "import sys; from datakit.cli import main; sys.exit(main(['run', 'dmeo']))"
    assert subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True).returncode == 2  # noqa: PLW1510
