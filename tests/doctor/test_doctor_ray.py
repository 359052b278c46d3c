"""`datakit doctor` on a cluster that cannot be used: a real head that asks for a token and is of another version."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.cluster import ROOT_OF_THE_CODE, TOKEN, marked, processes_with, wait_until
from tests.support.faults.mounts import on_a_disk
from tests.support.processes import kill

pytest.importorskip("ray")

HEAD = "import sys, ray; ray.__version__ = '2.40.0'; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; main()"
DOCTOR = (sys.executable, "-m", "datakit", "doctor", "--json")


def environment(home: Path, **variables: str) -> dict[str, str]:
    """One without a token, nor a file of one, unless `variables` hold it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"HOME": str(home), "PYTHONPATH": ROOT_OF_THE_CODE} | variables


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head in token mode that says it is Ray 2.40.0."""
    with marked() as mark, socket.socket() as probe:
        folder = Path(f"/tmp/{mark[:8]}")  # short: Ray puts sockets there
        folder.mkdir()
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        options = ["--num-cpus", "1", "--object-store-memory", str(80 << 20), "--disable-usage-stats", "--block"]
        options += ["--node-ip-address", "127.0.0.1", "--include-dashboard", "false", "--temp-dir", str(folder)]
        command = [sys.executable, "-c", HEAD, "start", "--head", "--port", str(port), *options]
        variables = environment(tmp_path_factory.mktemp("home"), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
        path = folder / "log"
        with path.open("w") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        assert wait_until(lambda: "runtime started" in path.read_text() or process.poll() is not None, 60)
        assert process.poll() is None, path.read_text()
        yield f"127.0.0.1:{port}"
        kill(processes_with(mark))
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def examined(head: str, root: Path, environments: Sequence[dict[str, str]]) -> list[dict[str, dict[str, Any]]]:
    """The findings by check for each environment, all at once: Ray takes 20 s to give up. Each must be a problem."""
    command = [*DOCTOR, "--root", str(root), "--ray", head]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, env=each, stdout=pipe, stderr=pipe, text=True) for each in environments]
    ended = [(process.communicate(timeout=120), process.returncode) for process in started]
    assert [code for _, code in ended] == [2] * len(ended), ended
    assert all("InvalidAuthToken" not in printed for (_, printed), _ in ended), "Ray's own lines are no output of ours"
    return [{finding["check"]: finding for finding in json.loads(output)["findings"]} for (output, _), _ in ended]


def test_a_token_that_is_missing_or_another_is_told(head: str, tmp_path: Path) -> None:
    another = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "deadbeef" * 8}
    forgotten = {"RAY_AUTH_TOKEN": TOKEN}
    environments = [environment(tmp_path, **variables) for variables in ({}, another, forgotten)]
    found = examined(head, tmp_path / "root", environments)
    for cluster in (checks["cluster"] for checks in found):
        assert cluster["state"] == "problem" and f"{head} asks for a token" in cluster["message"]
        assert "RAY_AUTH_MODE=token" in cluster["next_step"] and "RAY_AUTH_TOKEN" in cluster["next_step"]
    assert found[-1]["ray token"]["state"] == "warning", "a token whose mode was forgotten"


def test_another_version_of_ray_is_told_with_both_versions(head: str, tmp_path: Path) -> None:
    right = environment(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    (checks,) = examined(head, tmp_path / "root", [right])
    import ray

    text = checks["cluster"]["message"]
    assert checks["cluster"]["state"] == "problem" and "2.40.0" in text and ray.__version__ in text
    assert "same versions of Ray" in checks["cluster"]["next_step"]


def test_token_mode_without_a_token_is_found_before_ray_is_asked(head: str, tmp_path: Path) -> None:
    (checks,) = examined(head, tmp_path / "root", [environment(tmp_path, RAY_AUTH_MODE="token")])
    assert checks["ray token"]["state"] == "problem" and "RAY_AUTH_TOKEN" in checks["ray token"]["next_step"]


def test_the_address_file_of_a_cluster_that_is_gone_is_found(tmp_path: Path) -> None:
    leave = 'echo 127.0.0.1:1 > "$DISK/ray_current_cluster"; unset RAY_ADDRESS; "$@"'
    done = on_a_disk(Path("/tmp/ray"), leave, *DOCTOR, "--ray", "auto", "--root", tmp_path / "root", SIZE="1m")
    checks = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 2 and checks["ray address"]["state"] == "problem"
    assert "127.0.0.1:1" in checks["ray address"]["message"] and "ray stop" in checks["ray address"]["next_step"]


def test_a_cluster_of_this_machine_alone_is_well(tmp_path: Path) -> None:
    command = [*DOCTOR, "--root", str(tmp_path / "root"), "--ray", "local"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)["healthy"], done.stdout
