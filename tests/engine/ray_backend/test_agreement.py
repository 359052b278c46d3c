"""Nodes are compared with the driver, and addresses are checked before Ray sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datakit.engine.interpreter import Installation
from datakit.engine.ray_backend import agreement, connection
from datakit.engine.ray_backend.agreement import (
    Expected,
    NodeReport,
    announce_compilation,
    nonce_below,
    require,
    take_announcement,
)
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.versions import comparable_versions
from datakit.errors import InputError, RootError, UsageError
from tests.support.faults.cluster import free_port


@pytest.fixture(autouse=True)
def not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a connection that other tests of this process have."""
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)


def test_nodes_must_match_root_and_versions() -> None:
    versions = {"python": "3.11", "pyarrow": "26.0.1", "datakit": "0.1.0"}
    expected = Expected("/data", "/data/.probe/n", "abc", versions, Installation("/opt/datakit", "f0"))
    alike = NodeReport("b", 1, versions, Installation("/usr/datakit", "f0"), "abc")
    require(expected, alike, "b")
    with pytest.raises(InputError) as other:
        require(expected, replace(alike, versions=versions | {"pyarrow": "25.0.0"}), "b (10.0.0.2)")
    assert "node b (10.0.0.2)" in str(other.value)
    assert "pyarrow is 25.0.0, but the driver has 26.0.1" in str(other.value)
    with pytest.raises(RootError, match="different content"):
        require(expected, replace(alike, nonce="xyz"), "b")
    with pytest.raises(InputError, match=r"datakit \(/usr/datakit\) that differ from the driver's \(/opt/datakit\)"):
        require(expected, replace(alike, installation=Installation("/usr/datakit", "f1")), "b")
    assert {"python", "pyarrow", "numpy"} <= set(comparable_versions())


def test_unreachable_addresses_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        RayExecutor("127.0.0.1:9", str(tmp_path))
    with pytest.raises(UsageError, match="'somewhere' is not the address of a Ray cluster; use local, auto or host:po"):
        RayExecutor("somewhere", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_auto_names_a_dead_cluster_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        UsageError, match=rf"auto resolves to {address} \(from RAY_ADDRESS\): no Ray cluster answers.*unset"
    ):
        RayExecutor("auto", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS")
    left = tmp_path / "ray_current_cluster"
    monkeypatch.setattr(agreement, "ADDRESS_FILE", str(left))
    with pytest.raises(UsageError, match="auto finds no Ray cluster"):
        agreement.auto_address()
    left.write_text(f"{address}\n")
    with pytest.raises(UsageError, match=f"auto resolves to {address} .from .*ray_current_cluster"):
        agreement.auto_address()


def test_compilation_is_announced_once_and_leaves_no_file(tmp_path: Path) -> None:
    with nonce_below(str(tmp_path)) as expected:
        assert not take_announcement(expected)
        announce_compilation(expected)
        announce_compilation(expected)
        assert [take_announcement(expected), take_announcement(expected)] == [True, False]
        announce_compilation(expected)
    assert not list(tmp_path.iterdir())
