"""All tests of this folder share one cluster and so one xdist worker; without Ray they are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.cluster import SharedCluster

HERE = Path(__file__).parent

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from datakit.engine.ray_backend.executor import RayExecutor

    @pytest.fixture(scope="package")
    def executor(shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
        """This process as a driver on the shared cluster. Further executors join by the address "auto"."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DATAKIT_TEST_VARIABLE", "forwarded")
            joined = RayExecutor(shared_cluster.cluster.address, str(tmp_path_factory.mktemp("root")))
            yield joined
            joined.close()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.xdist_group("ray"))
