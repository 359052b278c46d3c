"""What Ray loses or cannot do is told apart, and each message says what to do: real deaths, real refusals."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("datakit[ray] is not installed", allow_module_level=True)

from ray import exceptions

from datakit.engine.executor import Attempt, Cause
from datakit.engine.ray_backend import agreement
from datakit.engine.ray_backend.failures import FAILURES, is_lasting, outcome_of
from datakit.engine.task import Task
from datakit.errors import UsageError
from tests.engine.ray_backend.test_ray import run_driver
from tests.support.faults.cluster import ROOT_OF_THE_CODE
from tests.support.faults.ray_head import RayHead, free_port, ray_head

pytestmark = pytest.mark.ray
REPOSITORY = Path(ROOT_OF_THE_CODE)


def import_error(name: str) -> exceptions.RayError:
    """What Ray raises for an exception in a worker."""
    cause = ModuleNotFoundError("No module named 'datakit'") if name == "import" else OSError("a document's text")
    return exceptions.RayTaskError("run_attempt", "traceback", cause)


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (exceptions.WorkerCrashedError(), Cause.INFRASTRUCTURE, "its Ray worker process died.*next: .*dmesg"),
        (exceptions.NodeDiedError("gone"), Cause.INFRASTRUCTURE, "its node died.*: gone.*next: .*ray status"),
        (exceptions.LocalRayletDiedError(), Cause.INFRASTRUCTURE, "raylet.*next: raylet.out"),
        (exceptions.OutOfMemoryError("95 %"), Cause.INFRASTRUCTURE, "memory monitor .*95 %.*next: .*--memory"),
        (exceptions.OwnerDiedError("00", b"", ""), Cause.INFRASTRUCTURE, "owned the attempt died.*next: run again"),
        (exceptions.ObjectLostError("00", b"", ""), Cause.INFRASTRUCTURE, "its result was lost"),
        (exceptions.OutOfDiskError(), Cause.INFRASTRUCTURE, "the disk with Ray's files is full.*next: free some"),
        (exceptions.TaskUnschedulableError("no node"), Cause.INFRASTRUCTURE, "no node can take it.*next: .*ray status"),
        (exceptions.RuntimeEnvSetupError("no conda"), Cause.REFUSED, "runtime environment .*: no conda.*next: mend"),
        (import_error("import"), Cause.REFUSED, "cannot load datakit: ModuleNotFoundError; next: install the same"),
        (import_error("another"), Cause.INFRASTRUCTURE, "could not run the attempt: OSError; next: "),
        (exceptions.RaySystemError("odd"), Cause.INFRASTRUCTURE, "Ray reports an error .*odd"),
        (exceptions.TaskCancelledError(), Cause.CANCELLED, "the run was stopped"),
    ],
)
def test_each_error_of_ray_has_a_cause_and_a_next_step(error: exceptions.RayError, cause: Cause, words: str) -> None:
    attempt = Attempt(Task("t", "tests.support.engine.engine_tasks:write_number", {}), "test", "/step", 1, 1, 1 << 30)
    outcome = outcome_of(error, attempt)
    assert outcome.cause is cause
    assert re.search(words, outcome.message), outcome.message
    assert "document" not in outcome.message
    assert is_lasting(error) == (cause is Cause.REFUSED or isinstance(error, exceptions.RayTaskError))


def test_the_operators_table_has_every_one_of_them() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    assert [failure.kind.__name__ for failure in FAILURES if failure.kind.__name__ not in text] == []


JOINING = """
import sys
import ray
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.errors import DatakitError

ray.init(address=sys.argv[1], runtime_env={"conda": "nowhere"}, log_to_driver=False)
try:
    RayExecutor("auto", sys.argv[2])
except DatakitError as error:
    print(error.exit_code, error)
"""

NO_CPUS = """
import sys
import datakit.engine.ray_backend.executor as backend
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.observe.observer import SilentObserver
from datakit.errors import DatakitError
from tests import engine_tasks

backend.NO_NODE_SECONDS = 3.0  # and not a quarter of an hour
executor = backend.RayExecutor(sys.argv[1], sys.argv[2])
step, plan = engine_tasks.number_step(sys.argv[2] + "/step"), engine_tasks.numbers(1)
try:
    run_step(step, plan, lambda: executor, RunOptions(), SilentObserver())
except DatakitError as error:
    print(error.exit_code, error)
executor.close()
"""

TOO_FULL = """
import sys, time
import ray
from datakit.engine.ray_backend.failures import describe

ray.init(address=sys.argv[1], log_to_driver=False)
try:
    ray.get(ray.remote(max_retries=0)(lambda: time.sleep(60)).remote())
except ray.exceptions.RayError as error:
    print(describe(error))
"""


def said(program: str, head: RayHead, root: Path) -> str:
    """What a program prints that joins the cluster."""
    command = [sys.executable, "-c", program, head.address, str(root)]
    environment = os.environ | head.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def test_what_is_no_use_to_try_again_ends_at_once(tmp_path: Path) -> None:
    with ray_head("--num-cpus", "0") as head:
        refused = said(NO_CPUS, head, tmp_path)
        assert refused.startswith("1 no node of the Ray cluster has had a CPU for")
        assert "start a node with CPUs" in refused
        head.join("--num-cpus", "1")
        refused = said(JOINING, head, tmp_path)
        assert refused.startswith("2 node ")
        assert "a node could not make the runtime environment (RuntimeEnvSetupError: " in refused
        assert "next: mend the `runtime_env`" in refused


def test_rays_own_memory_monitor_is_named(tmp_path: Path) -> None:
    always_too_full = ray_head("--num-cpus", "1", RAY_memory_usage_threshold="0.02", RAY_memory_monitor_refresh_ms="50")
    with always_too_full as head:
        assert "Ray's memory monitor killed its worker" in (message := said(TOO_FULL, head, tmp_path))
        assert "(OutOfMemoryError: 1 worker(s) were killed" in message
        assert "next: see what else takes memory there" in message


def test_auto_names_a_cluster_that_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(UsageError, match=rf"auto means {address} \(from RAY_ADDRESS\): no Ray cluster answers.*unset"):
        run_driver("auto", tmp_path, {"RAY_ADDRESS": address})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    left = tmp_path / "ray_current_cluster"
    monkeypatch.setattr(agreement, "ADDRESS_FILE", str(left))
    with pytest.raises(UsageError, match="auto finds no Ray cluster"):
        agreement.auto_address()
    left.write_text(f"{address}\n")
    with pytest.raises(UsageError, match=f"auto means {address} .from .*ray_current_cluster"):
        agreement.auto_address()
