"""The head of a cluster dies in the middle of a run: a message in time, and the next run ends in the same bytes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("datakit[ray] is not installed", allow_module_level=True)

from tests.support.faults.cluster import ROOT_OF_THE_CODE, wait_until
from tests.support.faults.ray_head import ray_head
from tests.support.small_shelf import make_shelf
from tests.support.trees import tree

pytestmark = pytest.mark.ray


def run(recipe: Path, root: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """`datakit run`."""
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), *options]
    return subprocess.Popen(
        command, env=os.environ | variables, cwd=ROOT_OF_THE_CODE, stderr=subprocess.PIPE, text=True
    )


def test_a_head_that_dies_ends_the_run_with_a_message_and_the_next_run_goes_on(tmp_path: Path) -> None:
    recipe, quiet, root = make_shelf(tmp_path / "shelf"), tmp_path / "quiet", tmp_path / "root"
    assert run(recipe, quiet, "--workers", "2").wait(90) == 0
    with ray_head("--num-cpus", "2") as head:
        variables = head.environment | {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}  # Ray's patience; 60 by default
        driver = run(recipe, root, "--ray", head.address, **variables)
        assert wait_until(lambda: list(root.glob("*/*/manifest.json")), 60), "no step ends"
        head.kill()
        _, complaints = driver.communicate(timeout=90)
        assert driver.returncode == 1, complaints
        assert f"the head node of the Ray cluster ({head.address}) has not answered for" in complaints
        assert "start it again; run again when it is back: what is done is kept" in complaints
        head.start_head("--include-dashboard", "false", "--num-cpus", "2")
        driver = run(recipe, root, "--ray", head.address, **variables)
        assert (driver.communicate(timeout=90), driver.returncode)[1] == 0
    assert tree(str(root)) == tree(str(quiet))
