"""Nodes that do not match the driver are named before any work, with real nodes that do not."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from datakit.engine.ray_backend import agreement
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.versions import comparable_versions
from datakit.errors import InputError, RootError
from tests.support.faults.cluster import SharedCluster, ray_cluster
from tests.support.paths import REPOSITORY


def test_nodes_without_the_root_are_named(executor: RayExecutor, shared_cluster: SharedCluster) -> None:
    root = shared_cluster.private_root
    with pytest.raises(RootError) as refused:
        RayExecutor("auto", str(root))
    message = str(refused.value)
    assert message.startswith(f"node {os.uname().nodename} (")
    assert f"does not share the root {root}: a file that the driver wrote is missing there" in message
    assert "s3://" in message
    assert list(root.iterdir()) == [], "nothing is left"


def test_nodes_with_other_versions_are_named(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = comparable_versions() | {"zstandard": "0.0.1"}
    monkeypatch.setattr(agreement, "comparable_versions", lambda: ours)
    with pytest.raises(InputError, match=r"node .* zstandard is .*, but the driver has 0\.0\.1; install the same"):
        RayExecutor("auto", str(tmp_path))


IMPOSSIBLE = """
import json, sys
import ray
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.errors import InputError

ray.init(address=sys.argv[1], runtime_env={"conda": "nowhere"}, log_to_driver=False)
try:
    RayExecutor("auto", sys.argv[2])
except InputError as error:
    print(json.dumps({"message": str(error)}))
"""


def test_impossible_runtime_environments_are_refused(shared_cluster: SharedCluster, tmp_path: Path) -> None:
    message = shared_cluster.cluster.drive(IMPOSSIBLE, str(tmp_path))["message"]
    assert message.startswith("node ")
    assert "a node could not create the runtime environment (RuntimeEnvSetupError: " in message
    assert "next: fix the `runtime_env`" in message


def test_nodes_with_other_files_of_datakit_are_named(tmp_path: Path) -> None:
    """A checkout on a node's import path hides the installed datakit, although both have the same version."""
    checkout = tmp_path / "checkout"
    shutil.copytree(REPOSITORY / "datakit", checkout / "datakit", ignore=shutil.ignore_patterns("__pycache__"))
    with (checkout / "datakit" / "text" / "__init__.py").open("a") as file:
        file.write("# another revision\n")
    program = (
        "import json, sys\n"
        "from datakit.engine.ray_backend.executor import RayExecutor\n"
        "from datakit.errors import InputError\n"
        "try: RayExecutor(sys.argv[1], sys.argv[2])\n"
        "except InputError as error: print(json.dumps({'refused': str(error)}))\n"
    )
    with ray_cluster("--num-cpus", "0") as cluster:
        cluster.join("--num-cpus", "1", variables={"PYTHONPATH": str(checkout)})
        message = cluster.drive(program, str(tmp_path), cwd=tmp_path, PYTHONPATH=str(REPOSITORY))["refused"]
    found = re.fullmatch(
        r"node .* runs files of datakit \((.*)\) that differ from the driver's \((.*)\); install .*", message
    )
    assert found is not None, message
    assert found.groups() == (str(checkout / "datakit"), str(REPOSITORY / "datakit"))
