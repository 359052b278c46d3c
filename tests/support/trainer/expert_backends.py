"""A small layer, and a tokamax whose import fails, for the tests of the experts' backends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.trainer.moe_layer import Shape

SMALL = Shape(tokens=256, hidden=64, width=32, experts=8, choices=2)


def install_broken_tokamax(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a tokamax before all others that lacks one of its own requirements."""
    (folder / "tokamax.py").write_text("import needed_by_tokamax\n")
    monkeypatch.delitem(sys.modules, "tokamax", raising=False)
    monkeypatch.syspath_prepend(folder)
