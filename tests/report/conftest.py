"""Fixtures of the tests of reports: a browser, and a report about the shared finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.report import write_report
from tests.support.report.browser import browser

__all__ = ["browser"]


@pytest.fixture(scope="session")
def shelf_report(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the report about the shared finished run."""
    return "file://" + write_report(str(finished / "root" / "shelf"), str(tmp_path_factory.mktemp("reports")))
