"""The vendored library is the published file, and lies in the package with its license."""

from __future__ import annotations

import hashlib
import tomllib
from importlib.resources import files

from tests.support.paths import REPOSITORY

ECHARTS = files("datakit.report") / "vendor" / "echarts"
SHA256 = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"  # of dist/echarts.min.js in echarts 6.1.0


def test_library_is_the_published_file() -> None:
    assert hashlib.sha256((ECHARTS / "echarts.min.js").read_bytes()).hexdigest() == SHA256
    assert f"`{SHA256}`" in (REPOSITORY / "docs" / "security.md").read_text()


def test_library_has_its_licenses_beside_it() -> None:
    assert "Apache License" in (ECHARTS / "LICENSE").read_text()
    assert {"LICENSE-d3", "NOTICE"} <= {path.name for path in ECHARTS.iterdir()}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert [name for name in project["license-files"] if "echarts" in name]


def test_library_can_stand_in_a_script_element() -> None:
    text = (ECHARTS / "echarts.min.js").read_text()
    assert "</script" not in text.lower() and "<!--" not in text
