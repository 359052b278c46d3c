"""`datakit doctor` reports why a cluster cannot be used: its token, its version, or a dead address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import ray

from datakit.doctor.cluster import check_cluster
from datakit.doctor.finding import Finding, State
from datakit.engine.ray_backend.node_environment import FORWARD, STORES
from tests.support.faults.cluster import QUICK_REFUSAL, ROOT_OF_THE_CODE, RayCluster, free_port, token
from tests.support.faults.doctor import DOCTOR, findings_of
from tests.support.faults.mounts import on_a_disk

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

OTHER_VERSION = """
import ray
ray.__version__ = "2.40.0"
from datakit.cli import main
raise SystemExit(main())
"""


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment without a token or a token file, except for `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | QUICK_REFUSAL | {"HOME": str(home), "PYTHONPATH": ROOT_OF_THE_CODE} | variables


def examine_all(
    address: str, root: Path, environments: Sequence[dict[str, str]], program: Sequence[str] = DOCTOR
) -> list[dict[str, dict[str, Any]]]:
    """Run `datakit doctor` in each environment at the same time; returns the findings by check."""
    command = [*program, "--root", str(root), "--ray", address]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, env=each, stdout=pipe, stderr=pipe, text=True) for each in environments]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in started]
    assert all("InvalidAuthToken" not in printed for _, printed, _ in ended), "Ray's own lines must not be shown"
    return [findings_of(subprocess.CompletedProcess(command, code, *output)) for *output, code in ended]


def test_missing_and_wrong_tokens_are_problems(token_cluster: RayCluster, tmp_path: Path) -> None:
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "deadbeef" * 8}
    no_mode = {"RAY_AUTH_TOKEN": token()}
    environments = [environment(tmp_path, **variables) for variables in ({}, wrong, no_mode)]
    found = examine_all(token_cluster.address, tmp_path / "root", environments)
    for cluster in (checks["cluster"] for checks in found):
        assert cluster["state"] == "problem" and f"{token_cluster.address} requires a token" in cluster["message"]
        assert "RAY_AUTH_MODE=token" in cluster["next_step"] and "RAY_AUTH_TOKEN" in cluster["next_step"]
    assert found[-1]["ray token"]["state"] == "warning", "a token without its mode"


def test_another_version_of_ray_is_a_problem(token_cluster: RayCluster, tmp_path: Path) -> None:
    right = environment(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token())
    program = [sys.executable, "-c", OTHER_VERSION, "doctor", "--json"]
    (checks,) = examine_all(token_cluster.address, tmp_path / "root", [right], program)
    found = checks["cluster"]
    assert found["state"] == "problem" and "2.40.0" in found["message"] and ray.__version__ in found["message"]
    assert "same versions of Ray" in found["next_step"]


def test_token_mode_without_a_token_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    checks = {finding.check: finding for finding in check_cluster(f"127.0.0.1:{free_port()}", None)}
    assert checks["ray token"].state is State.PROBLEM and "RAY_AUTH_TOKEN" in checks["ray token"].next_step
    assert checks["cluster"].state is State.WARNING, "not joined without a root"


def test_a_token_without_its_mode_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 40)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    checks = {finding.check: finding for finding in check_cluster("auto", str(tmp_path))}
    assert checks["ray address"].state is State.PROBLEM and "RAY_ADDRESS" in checks["ray address"].next_step
    assert checks["ray token"].state is State.WARNING
    assert "cluster" not in checks


def test_the_address_file_of_a_dead_cluster_is_a_problem(tmp_path: Path) -> None:
    leave = 'echo 127.0.0.1:1 > "$DISK/ray_current_cluster"; unset RAY_ADDRESS; "$@"'
    done = on_a_disk(Path("/tmp/ray"), leave, *DOCTOR, "--ray", "auto", "--root", tmp_path / "root", SIZE="1m")
    found = findings_of(done)["ray address"]
    assert done.returncode == 2 and found["state"] == "problem"
    assert "127.0.0.1:1" in found["message"] and "ray stop" in found["next_step"]


@pytest.mark.soak  # it starts a cluster for one answer
def test_a_private_cluster_is_ok(tmp_path: Path) -> None:
    command = [*DOCTOR, "--root", str(tmp_path / "root"), "--ray", "local"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and json.loads(done.stdout)["healthy"], done.stdout


def test_credentials_that_nodes_do_not_get_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(STORES)]:
        monkeypatch.delenv(name)

    def found() -> Finding:
        checks = {finding.check: finding for finding in check_cluster(f"127.0.0.1:{free_port()}", None)}
        return checks["ray credentials"]

    assert found().state is State.OK
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    assert found().state is State.WARNING
    assert "sent to the nodes: " in found().message and "own: HF_TOKEN" in found().message
    assert f"set {FORWARD}=HF_TOKEN" in found().next_step and "hf_0123456789" not in found().message
    monkeypatch.setenv(FORWARD, "HF_TOKEN")
    assert found().state is State.OK and "HF_TOKEN" in found().message
    monkeypatch.setenv(FORWARD, "HF_TOKN")
    assert found().state is State.PROBLEM
