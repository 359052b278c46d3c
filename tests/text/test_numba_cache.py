"""Cached kernels are compiled again when a module that they use has changed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

KERNELS = """
import foreign_constants
from foreign_constants import VALUE
from datakit.text.numba_cache import cached_njit

@cached_njit(foreign_constants)
def value():
    return VALUE
"""


def loaded(folder: Path, value: int) -> ModuleType:
    """Import the kernels anew, as another process would, with the foreign module saying `value`."""
    (folder / "foreign_constants.py").write_text(f"VALUE = {value}\n")
    for name in ("foreign_constants", "foreign_kernels"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("foreign_kernels")


def test_kernels_are_cached_until_a_used_module_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # times of files within a second of each other look equal
    (tmp_path / "foreign_kernels.py").write_text(KERNELS)
    for value, hits in ((1, 0), (1, 1), (2, 0), (2, 1), (1, 1)):
        kernel = loaded(tmp_path, value).value
        assert kernel() == value
        assert sum(kernel.stats.cache_hits.values()) == hits
