"""A finished root with a step of every stage, built once for all tests of validation in a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.validate.whole_root import build


@pytest.fixture(scope="session")
def whole_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root. Tests must not change it."""
    return build(tmp_path_factory.mktemp("whole"))
