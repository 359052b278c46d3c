"""Provides roots for the tests of consolidate: on a disk, and on one S3 server that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit.storage import urls
from tests.support.s3 import s3_root


@pytest.fixture(scope="package")
def store() -> Iterator[str]:
    """Start one S3 server for this folder."""
    with s3_root() as root:
        yield root


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Provide an empty directory, on a disk and in an object store."""
    if request.param == "disk":
        return str(tmp_path)
    return urls.join(request.getfixturevalue("store"), tmp_path.name)
