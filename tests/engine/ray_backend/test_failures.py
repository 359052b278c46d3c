"""Ray's errors have a cause and a next step."""

from __future__ import annotations

import re
import time

import pytest
import ray
from ray import exceptions

from datakit.engine.executor import Attempt, Cause
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.ray_backend.failures import FAILURES, describe, is_permanent, outcome_of
from datakit.engine.task import Task
from tests.support.faults.cluster import SharedCluster
from tests.support.paths import REPOSITORY


def import_error(name: str) -> exceptions.RayError:
    """Return what Ray raises for an exception in a worker."""
    cause = ModuleNotFoundError("No module named 'datakit'") if name == "import" else OSError("a document's text")
    return exceptions.RayTaskError("run_attempt", "traceback", cause)


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (exceptions.WorkerCrashedError(), Cause.INFRASTRUCTURE, "its Ray worker process died.*next: .*dmesg"),
        (exceptions.NodeDiedError("gone"), Cause.INFRASTRUCTURE, "its node died or .*: gone.*next: .*ray status"),
        (exceptions.LocalRayletDiedError(), Cause.INFRASTRUCTURE, "raylet.*next: see raylet.out"),
        (exceptions.OutOfMemoryError("95 %"), Cause.INFRASTRUCTURE, "memory monitor .*95 %.*next: .*--memory"),
        (exceptions.OwnerDiedError("00", b"", ""), Cause.INFRASTRUCTURE, "owned the attempt died.*next: run again"),
        (exceptions.ObjectLostError("00", b"", ""), Cause.INFRASTRUCTURE, "its result was lost in transit"),
        (exceptions.OutOfDiskError(), Cause.INFRASTRUCTURE, "the disk with Ray's files is full.*next: free space"),
        (exceptions.TaskUnschedulableError("no node"), Cause.INFRASTRUCTURE, "no node can run it.*next: .*ray status"),
        (exceptions.RuntimeEnvSetupError("no conda"), Cause.REFUSED, "runtime environment .*: no conda.*next: fix"),
        (import_error("import"), Cause.REFUSED, "cannot load datakit: ModuleNotFoundError; next: install the same"),
        (import_error("another"), Cause.INFRASTRUCTURE, "could not run the attempt: OSError; next: "),
        (exceptions.RaySystemError("odd"), Cause.INFRASTRUCTURE, "Ray reports an error .*odd"),
        (exceptions.TaskCancelledError(), Cause.CANCELLED, "the run was stopped"),
    ],
)
def test_ray_errors_have_causes_and_next_steps(error: exceptions.RayError, cause: Cause, words: str) -> None:
    attempt = Attempt(Task("t", "tests.support.engine.engine_tasks:write_number", {}), "test", "/step", 1, 1, 1 << 30)
    outcome = outcome_of(error, attempt)
    assert outcome.cause is cause
    assert re.search(words, outcome.message), outcome.message
    assert "document" not in outcome.message
    assert is_permanent(error) == (cause is Cause.REFUSED or isinstance(error, exceptions.RayTaskError))


def test_operations_page_lists_every_failure() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    assert [failure.kind.__name__ for failure in FAILURES if failure.kind.__name__ not in text] == []


def test_kills_by_rays_memory_monitor_are_named(executor: RayExecutor, shared_cluster: SharedCluster) -> None:
    settings = {"RAY_memory_usage_threshold": "0.02", "RAY_memory_monitor_refresh_ms": "50"}
    node = shared_cluster.cluster.join("--num-cpus", "0", "--resources", '{"full": 1}', variables=settings)
    try:
        with pytest.raises(exceptions.RayError) as killed:
            ray.get(ray.remote(num_cpus=0, max_retries=0, resources={"full": 1})(lambda: time.sleep(120)).remote())
    finally:
        shared_cluster.cluster.kill(node)
    message = describe(killed.value)
    assert "Ray's memory monitor killed its worker" in message
    assert "(OutOfMemoryError: 1 worker(s) were killed" in message
    assert "next: find out what else uses memory on that node" in message
