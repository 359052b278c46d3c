"""Attempts on a Ray cluster: each one a Ray core task with `max_retries=0`, so that all retrying is the driver's.

Ray leases slots, places tasks and notices lost nodes; it never sees data (results are a few hundred bytes, files go
through the root) and never judges: whatever it reports becomes an Outcome with the cause "infrastructure". The only
module that imports ray; the driver imports it when a cluster is asked for.

Cost: 2 s to start a private cluster, 0.5 ms a task, 1.1 GB of processes. On a cluster with an autoscaler the attempts
that wait are the demand that it sees.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

# Ray prints what its nodes complain of (a worker that died) on this process's standard output, where `--json` goes, and
# reads only once, when it is imported, what to leave out. Everything: each complaint is an Outcome's message.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datakit.engine.cluster import Expected, NodeReport, assert_reachable, nonce_below, private_token, require
from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.local import MEMORY_SHARE, memory_limit
from datakit.engine.ray_worker import run_attempt
from datakit.engine.task import decode, encode
from datakit.errors import InputError, StepFailedError, UsageError

LOCAL = "local"
TRAVELLING = ("AWS_", "DATAKIT_", "FSSPEC_", "HF_TOKEN")  # environment variables that storage needs on the nodes
REFRESH_SECONDS = 2.0
PROBE_SECONDS = 60.0
PROBE_TRIES, PROBE_WAIT_SECONDS = 6, 1.0
LASTING = (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError)  # nobody's death: asking again is in vain
CANCEL_SECONDS = 3.0
OBJECT_STORE_BYTES = 80 << 20  # Ray's smallest: nothing but results goes through it


class RayExecutor:
    """The cluster backend of the Executor seam."""

    def __init__(self, address: str, root: str, workers: int | None = None) -> None:
        """Joins the cluster at `address` ("auto", "host:port"), or starts a private one on this machine ("local").

        `workers` caps the CPUs in use. Raises RootError where a node does not share `root`, InputError where its
        versions differ, UsageError where the cluster cannot be joined.
        """
        self._workers, self._waiting = workers, deque[Attempt]()
        self._running: dict[ray.ObjectRef, Attempt] = {}
        self._remote = ray.remote(max_retries=0, runtime_env=_environment())(run_attempt)
        self._nodes: list[dict[str, Any]] = []
        self._refreshed = -REFRESH_SECONDS
        self._closing = contextlib.ExitStack()
        with self._closing:
            expected = self._closing.enter_context(nonce_below(root))
            self._closing.enter_context(_connected(address, workers))
            self._expected = encode(expected)
            self._refresh()
            _probe(self._look, expected)
            self._closing = self._closing.pop_all()  # nothing failed: close() does it

    @property
    def slots(self) -> int:
        """How many one-CPU attempts run at the same time; at least one, so that an empty cluster sees a demand."""
        self._refresh()
        cpus = int(sum(node["Resources"].get("CPU", 0) for node in self._nodes))
        return max(1, min(cpus, self._workers or cpus))

    def submit(self, attempt: Attempt) -> None:
        """Hand the attempt to Ray, which starts it as soon as a slot is free."""
        self._waiting.append(attempt)
        self._launch()

    def wait(self, timeout: float) -> list[Outcome]:
        """The attempts that ended since the last call; waits up to `timeout` seconds for the first."""
        if not self._running:
            time.sleep(timeout)
            return []
        with _connection_errors():
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
            if ready:
                ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
            ended = [_outcome_of(reference, self._running.pop(reference)) for reference in ready]
        self._launch()
        return ended

    def abandon(self) -> None:
        """Kill what runs and forget it; the cluster stays joined."""
        self._waiting.clear()
        if self._running:
            for reference in self._running:
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(reference, force=True)  # ends the Ray worker, and with it its fork server and children
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(list(self._running), num_returns=len(self._running), timeout=CANCEL_SECONDS)
            self._running.clear()

    def close(self) -> None:
        """Kill what runs, leave the cluster (stop a private one), remove the nonce. A second call does nothing."""
        self.abandon()
        self._closing.close()

    def _launch(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            attempt = self._waiting.popleft()
            with _connection_errors():
                reference = self._function(attempt).remote(encode(attempt), self._expected)
            self._running[reference] = attempt

    def _has_room(self, attempt: Attempt) -> bool:
        """Under a cap, Ray gets only what may run now: it would fill the cluster otherwise."""
        if self._workers is None or not self._running:
            return True
        return sum(running.cpus for running in self._running.values()) + attempt.cpus <= self._workers

    def _function(self, attempt: Attempt) -> Any:
        """The remote function for this attempt, which asks for no more than the biggest node has.

        One that must run alone asks for all of that node's memory (every attempt asks for some), unless it wants no
        more than its share of it.
        """
        self._refresh()
        cpus = max((node["Resources"].get("CPU", 0) for node in self._nodes), default=0)
        memory = int(max((node["Resources"].get("memory", 0) for node in self._nodes), default=0))
        alone = attempt.alone and attempt.memory_bytes * cpus > attempt.cpus * memory
        return self._remote.options(
            name=attempt.phase,
            num_cpus=min(attempt.cpus, cpus or attempt.cpus),
            memory=memory if alone else min(attempt.memory_bytes, memory or attempt.memory_bytes),
        )

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._look()

    def _look(self) -> list[dict[str, Any]]:
        with _connection_errors():
            self._nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        self._refreshed = time.monotonic()
        return self._nodes


def _environment() -> dict[str, Any]:
    """What travels to the nodes: the variables that storage and our own code read."""
    return {"env_vars": {name: value for name, value in os.environ.items() if name.startswith(TRAVELLING)}}


@contextlib.contextmanager
def _connected(address: str, workers: int | None) -> Iterator[None]:
    """A connection to the cluster while the block runs; that of the caller's program, where it has one."""
    if ray.is_initialized():
        if address == LOCAL:
            raise UsageError("this program is connected to a Ray cluster already: join it with the address 'auto'")
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _private_cluster(workers) if address == LOCAL else _joined(address):
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _private_cluster(workers: int | None) -> Iterator[None]:
    """Ray on this machine alone, for this process alone; its files are in one directory, which goes with it."""
    directory = tempfile.mkdtemp(prefix="datakit-ray-")
    try:
        with private_token():
            ray.init(
                address=LOCAL,
                num_cpus=workers or len(os.sched_getaffinity(0)),
                _memory=int(memory_limit() * MEMORY_SHARE),
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=directory,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # the processes that write there may be a moment from their end


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    """A cluster that somebody else runs. Raises UsageError where it cannot be joined."""
    if address != "auto":
        assert_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        advice = "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" if ":" in address else ""
        raise UsageError(f"cannot join the Ray cluster at {address}: {_first_line(error)}; {advice}") from error
    yield


def _probe(look: Callable[[], list[dict[str, Any]]], expected: Expected) -> None:
    """Ask every node whether it shares the root and our versions. Raises RootError, InputError.

    A node that dies meanwhile need not answer; one that lost the worker process is asked again. (Nodes that join later
    are asked when they get their first attempt.)
    """
    lost = _ask(look(), expected)
    for _ in range(PROBE_TRIES - 1):
        if not lost:
            return
        time.sleep(PROBE_WAIT_SECONDS)
        lost = _ask([node for node in look() if _name_of(node) in lost], expected)
    if lost:
        raise InputError(f"{'; '.join(lost.values())}; asked {PROBE_TRIES} times: see Ray's logs there")


def _ask(nodes: list[dict[str, Any]], expected: Expected) -> dict[str, str]:
    """Which nodes died, or lost the worker process, before they could answer, and how."""
    lost: dict[str, str] = {}
    data, remote = encode(expected), ray.remote(num_cpus=0, max_retries=0, runtime_env=_environment())(_prober())
    places = {
        remote.options(
            name="probe", scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(data): _name_of(node)
        for node in nodes
    }
    with _connection_errors():
        _, silent = ray.wait(list(places), num_returns=len(places), timeout=PROBE_SECONDS) if places else ([], [])
    if silent:
        names = ", ".join(places[reference] for reference in silent)
        raise InputError(
            f"no worker process started within {PROBE_SECONDS:.0f} s on node {names}; see Ray's logs there"
        )
    for reference, node in places.items():
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayError as error:
            trouble = f"node {node} cannot run a task: {_describe(error)}"
            if isinstance(error, LASTING):
                raise InputError(trouble) from error
            lost[node] = trouble
            continue
        if isinstance(answer, str):
            raise InputError(f"node {node} cannot import datakit ({answer}); install the same version on all nodes")
        require(expected, decode(answer, NodeReport), node)
    return lost


def _prober() -> Callable[[bytes], bytes | str]:
    """A function that Ray ships by value, so that it runs where datakit is not installed, too."""

    def probe(data: bytes) -> bytes | str:
        try:
            from datakit.engine.cluster import Expected, examine
            from datakit.engine.task import decode, encode
        except ImportError as error:
            return str(error)
        return encode(examine(decode(data, Expected)))

    return probe


def _name_of(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def _outcome_of(reference: ray.ObjectRef, attempt: Attempt) -> Outcome:
    try:
        return decode(ray.get(reference), Outcome)
    except ray.exceptions.TaskCancelledError:
        cause, message, kind = Cause.CANCELLED, "the run was stopped", "TaskCancelledError"
    except ray.exceptions.RayError as error:
        cause, message, kind = Cause.INFRASTRUCTURE, _describe(error), type(error).__name__
    return Outcome(attempt.phase, attempt.task.key, attempt.number, cause, message=message, error_type=kind)


def _describe(error: ray.exceptions.RayError) -> str:
    """Which of Ray's errors, in a line. Of an exception in a task only the type: its text is not ours to print."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"Ray could not run the attempt: {type(error.cause).__name__}"
    return f"Ray reports {type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except ray.exceptions.RayError as error:
        raise StepFailedError(
            f"the Ray cluster does not answer any more ({_describe(error)}); run again when it is back: "
            "what is done is kept"
        ) from error
