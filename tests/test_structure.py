"""The house stays tidy: folders are small, tests are found by name, docstrings say what things are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PACKAGE, TESTS = REPOSITORY / "datakit", REPOSITORY / "tests"
FILES_A_FOLDER = 16
RIDDLES = re.compile(r"(Of|What|Whether|How|Where|Who|Which|See|Nothing|So|The same|As)\b")


def folders(root: Path) -> list[Path]:
    """A folder and those below it that hold Python files."""
    return sorted({path.parent for path in root.rglob("*.py") if "fixtures" not in path.parts})


@pytest.mark.parametrize("root", [PACKAGE, TESTS], ids=["datakit", "tests"])
def test_folders_hold_at_most_sixteen_modules(root: Path) -> None:
    counts = {str(folder): len([*folder.glob("*.py")]) - 1 for folder in folders(root)}
    assert {folder: count for folder, count in counts.items() if count > FILES_A_FOLDER} == {}


def test_test_files_are_named_after_modules_or_promises() -> None:
    """Every test file is in the folder that mirrors its package, so it is found without a search."""
    stray = [
        path.relative_to(TESTS)
        for path in TESTS.rglob("test_*.py")
        if not (PACKAGE / path.parent.relative_to(TESTS)).is_dir()
    ]
    assert stray == []


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    """Not "Whether ...", "Of one phase." or "See the module.": a noun phrase or an imperative."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if RIDDLES.match(text):
                    found.append(f"{path.relative_to(REPOSITORY)}: {text.splitlines()[0][:60]}")
    assert found == []


def test_tests_import_helpers_from_support_only() -> None:
    pattern = re.compile(r"^\s*from tests\.(?!support)[\w.]* import|^\s*import tests\.(?!support)", re.MULTILINE)
    assert [str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if pattern.search(path.read_text())] == []
