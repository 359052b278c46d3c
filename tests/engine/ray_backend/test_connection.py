"""Private clusters leave nothing behind, lost connections end with a message, and wrong tokens are named."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from datakit.engine.ray_backend import connection
from datakit.engine.ray_backend.connection import RAY_TIMEOUT, Head
from datakit.errors import StepFailedError
from datakit.storage.stale_files import remove_dead_scratch
from tests.support.faults.cluster import (
    MARK,
    QUICK_REFUSAL,
    ROOT_OF_THE_CODE,
    RayCluster,
    free_port,
    marked,
    processes_with,
    ray_cluster,
    wait_until,
)
from tests.support.faults.hostile_modules import plant
from tests.support.small_shelf import make_shelf
from tests.support.trees import tree

PRIVATE_DRIVER = """
import json, sys, time
from pathlib import Path
from datakit.engine.ray_backend.executor import RayExecutor
from tests.support.engine.attempts import attempt, sleeping
from tests.support.faults.cluster import wait_until
from tests.support.processes import ended

root = Path(sys.argv[1])
executor = RayExecutor("local", str(root), workers=2)
family = sleeping(executor, root)
executor.submit(attempt("ray_tasks:announce_and_sleep", root, 2, file=str(root / "second")))
print("running", flush=True)
if sys.argv[2] == "close":
    started = time.monotonic()
    executor.close()
    executor.close()
    seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "gone": wait_until(lambda: all(map(ended, family)), 60)}))
else:
    time.sleep(600)
"""


def start_private_driver(tmp_path: Path, mark: str, then: str) -> subprocess.Popen[str]:
    """Start a driver with a private cluster and its own home and temporary directory; `then`: close or sleep."""
    for name in ("home", "root"):
        (tmp_path / name).mkdir(parents=True)
    variables = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": f"/tmp/{mark[:8]}",
        MARK: mark,
        "PYTHONPATH": ROOT_OF_THE_CODE,
        "RAY_ADDRESS": "127.0.0.1:1",  # of a dead cluster, which a private one must ignore
    }
    Path(variables["TMPDIR"]).mkdir()  # short: the paths of Unix sockets are limited
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | variables
    command = [sys.executable, "-c", PRIVATE_DRIVER, str(tmp_path / "root"), then]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_closed_private_clusters_leave_nothing(tmp_path: Path) -> None:
    with marked() as mark:
        driver = start_private_driver(tmp_path, mark, "close")
        output = driver.communicate(timeout=300)[0].splitlines()
        facts = json.loads(output[1])
        print(f"\nclosing a private cluster: {facts['seconds']:.1f} s", file=sys.stderr)
        assert driver.returncode == 0
        assert facts["gone"]
        assert wait_until(lambda: not processes_with(mark), 60), processes_with(mark)
        left = [path.name for path in Path(f"/tmp/{mark[:8]}").iterdir() if path.name.startswith("datakit-ray")]
        shutil.rmtree(f"/tmp/{mark[:8]}")
        assert left == [], "Ray's own files are gone"
        assert list((tmp_path / "home").iterdir()) == [], "no token is left in the home directory"
        assert not (tmp_path / "root/.probe").exists()


def started_processes(mark: str) -> list[list[str]]:
    """Commands of the processes with the mark, except workers that Ray was just starting: they live until a timeout."""
    commands = []
    for process in processes_with(mark):
        with contextlib.suppress(psutil.Error):
            commands.append(process.cmdline())
    return [command for command in commands if "default_worker.py" not in " ".join(command)]


def test_killed_drivers_take_their_private_cluster_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run removes the files that a killed driver and its workers left in the temporary folder."""
    with marked() as mark:
        driver = start_private_driver(tmp_path, mark, "sleep")
        assert driver.stdout is not None
        assert driver.stdout.readline() == "running\n"
        folder = Path(f"/tmp/{mark[:8]}")
        # Looked at before the kill: a worker that starts just afterwards already removes the files of the dead driver.
        assert list(folder.glob("datakit-ray-*")), "Ray keeps its files here"
        driver.kill()
        driver.communicate(timeout=60)
        assert wait_until(lambda: not started_processes(mark), 90), started_processes(mark)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        assert wait_until(lambda: not [*remove_dead_scratch(), *folder.glob("datakit-*")], 60), list(folder.iterdir())
        shutil.rmtree(folder)


JOIN = """
import json, sys
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.errors import DatakitError

try:
    RayExecutor(sys.argv[1], sys.argv[2])
except DatakitError as error:
    print(json.dumps({"type": type(error).__name__, "exit": error.exit_code, "message": str(error)}))
"""


@pytest.mark.parametrize("ours", [{"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}], ids=["other", "none"])
def test_clusters_that_require_a_token_say_so(token_cluster: RayCluster, tmp_path: Path, ours: dict[str, str]) -> None:
    cluster = token_cluster
    answer = cluster.drive(JOIN, str(tmp_path), **QUICK_REFUSAL, **ours)
    assert (answer["type"], answer["exit"]) == ("UsageError", 2)
    assert f"cannot join the Ray cluster at {cluster.address}" in answer["message"]
    assert "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in answer["message"]


def head_at(address: str, monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, Any]] | None = None) -> Head:
    """Return a Head of a cluster at `address`, as seen from its node "own"."""
    context = SimpleNamespace(gcs_address=address, get_node_id=lambda: "own")
    monkeypatch.setattr(connection.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(connection.ray, "nodes", lambda: nodes or [])
    return Head()


def test_silent_heads_end_the_run_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    head = head_at(address, monkeypatch)
    assert not head.answers(), "it may come back"
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert head.answers()
    assert not head.answers()
    monkeypatch.setenv(RAY_TIMEOUT, "0")
    head = head_at(address, monkeypatch)
    with pytest.raises(StepFailedError) as failed:
        head.answers()
    assert f"the head node of the Ray cluster ({address}) has not answered for 0 s" in str(failed.value)
    assert "start it again; then run again: finished work is kept" in str(failed.value)


def test_losing_our_own_node_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"NodeID": "own", "Alive": True, "NodeManagerHostname": "here", "NodeManagerAddress": "10.0.0.1"}
    assert head_at("127.0.0.1:1", monkeypatch, [node]).nodes() == [node]
    with pytest.raises(StepFailedError, match=r"talks to Ray \(here \(10\.0\.0\.1, own\)\) has left the cluster"):
        head_at("127.0.0.1:1", monkeypatch, [node | {"Alive": False}]).nodes()


def start_run(recipe: Path, root: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """Start `datakit run`."""
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), *options]
    return subprocess.Popen(
        command, env=os.environ | variables, cwd=ROOT_OF_THE_CODE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.soak
def test_runs_resume_after_the_head_died(tmp_path: Path) -> None:
    recipe, quiet, root = make_shelf(tmp_path / "shelf"), tmp_path / "quiet", tmp_path / "root"
    assert start_run(recipe, quiet, "--workers", "2").wait(300) == 0
    with ray_cluster("--num-cpus", "2") as cluster:
        variables = cluster.environment | {RAY_TIMEOUT: "20"}  # 60 by default
        driver = start_run(recipe, root, "--ray", cluster.address, **variables)
        assert wait_until(lambda: list(root.glob("*/*/manifest.json")), 120), "no step ends"
        cluster.kill()
        _, complaints = driver.communicate(timeout=300)
        assert driver.returncode == 1, complaints
        assert f"the head node of the Ray cluster ({cluster.address}) has not answered for" in complaints
        assert "start it again; then run again: finished work is kept" in complaints
        cluster.start_head("--include-dashboard", "false", "--num-cpus", "2")
        driver = start_run(recipe, root, "--ray", cluster.address, **variables)
        assert (driver.communicate(timeout=300), driver.returncode)[1] == 0
    assert tree(str(root)) == tree(str(quiet))


HOSTILE_DRIVER = """
import sys
from pathlib import Path
from datakit.engine.ray_backend.executor import RayExecutor
from tests.support.engine.attempts import attempt, run_all

executor = RayExecutor("local", sys.argv[1], workers=1)
(outcome,) = run_all(executor, [attempt("engine_tasks:write_number", sys.argv[1], number=1)])
executor.close()
print(outcome.cause)
"""


def test_nodes_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    imported = plant(tmp_path / "here")
    root = tmp_path / "root"
    root.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", HOSTILE_DRIVER, str(root)],
        cwd=tmp_path / "here",
        env={**environment, "PYTHONPATH": ROOT_OF_THE_CODE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert imported() == []
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
