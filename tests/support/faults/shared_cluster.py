"""Fixtures for Ray clusters that all tests of a process share. Tests that use them belong to the xdist group "ray"."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.faults.cluster import RayCluster, SharedCluster, free_port, ray_cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """A cluster without authentication: Ray reads that setting when it is imported, before a fixture could set it."""
    private, metrics = tmp_path_factory.mktemp("private"), free_port()
    options = ("--num-cpus", "1", "--metrics-export-port", str(metrics))
    with ray_cluster(*options, RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="") as cluster:
        second = cluster.join("--num-cpus", "1", hidden=private)
        yield SharedCluster(cluster, second, private, metrics)


@pytest.fixture(scope="session")
def token_cluster() -> Iterator[RayCluster]:
    """A head that requires a token, for processes that do not get in."""
    with ray_cluster("--num-cpus", "1") as cluster:
        yield cluster
