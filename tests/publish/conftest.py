"""Provides a finished dataset to publish, destinations on a disk and in a bucket, and a server of the Hub."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from datakit.storage import urls
from tests.support.hub_upload.server import Server, hub_server
from tests.support.published.shelf import dataset
from tests.support.s3 import s3_root

__all__ = ["dataset"]  # a fixture


@pytest.fixture
def dataset_copy(dataset: Path, tmp_path: Path) -> Path:
    """A copy of it, in a root of its own, to be changed."""
    return shutil.copytree(dataset.parent, tmp_path / "root") / dataset.name


@pytest.fixture(scope="package")
def store() -> Iterator[str]:
    """Start one S3 server for this folder."""
    with s3_root() as root:
        yield root


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Provide an empty destination, on a disk and in an object store."""
    if request.param == "disk":
        return str(tmp_path / "published")
    return urls.join(request.getfixturevalue("store"), tmp_path.name)


@pytest.fixture
def hub() -> Iterator[Server]:
    """Start a server of the Hub; the environment leads to it."""
    with hub_server() as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for at most a millisecond between tries."""
    wait = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: wait(min(seconds, 0.001)))
