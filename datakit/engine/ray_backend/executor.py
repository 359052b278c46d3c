"""Submits attempts to a Ray cluster: sets resource requests, caps CPUs, and recalls attempts that no node can run.

Each attempt is a Ray core task with `max_retries=0`, so only the driver retries. Ray leases slots, places tasks and
notices lost nodes. It never sees data (results are a few hundred bytes, and files go through the root), and decides
nothing about failures: every error that it reports becomes an Outcome (`failures.py`). Only this package imports ray,
and the driver imports this package only if the run uses a cluster.

Submitted attempts go to Ray immediately or, if the number of CPUs is capped, as soon as the cap permits. The driver
submits at most two attempts per slot at a time, so its memory does not grow with the number of tasks. Up to half of
these attempts wait in Ray, where an autoscaler sees them as demand. This demand is enough to double the cluster, which
is the most that an autoscaler does in one step by default. Cost: 2 s to start a private cluster, 0.5 ms per task, and
1.1 GB of memory for Ray's processes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

# Ray prints messages from its nodes (for example, about a worker's death) to this process's standard output, which is
# reserved for `--json`. This pattern, which Ray reads only once, on import, suppresses all of these messages. None of
# them is lost, since each also becomes the message of an Outcome.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import ray
import ray.exceptions

from datakit.engine.executor import Attempt, Executor, Outcome
from datakit.engine.ray_backend import failures
from datakit.engine.ray_backend.agreement import Expected, nonce_below, take_announcement
from datakit.engine.ray_backend.connection import LOCAL, Head, connected, connection_errors
from datakit.engine.ray_backend.disk_reports import DiskReports, new_key
from datakit.engine.ray_backend.node_environment import sent_variables
from datakit.engine.ray_backend.nodes import Node, Nodes, ResourceRequest, choose
from datakit.engine.ray_backend.probe import probe
from datakit.engine.ray_backend.worker import run_encoded_attempt
from datakit.engine.task import decode, encode
from datakit.errors import StepFailedError

REFRESH_SECONDS = 2.0  # a refresh takes 0.2 ms to contact the head node, plus the time of a request for the node list
CANCEL_SECONDS = 3.0  # how long `cancel` waits for Ray to kill workers
NO_NODE_SECONDS = 900.0  # how long to wait for a node: an autoscaler takes minutes to start the first one


@dataclass(frozen=True)
class _Sent:
    """An attempt handed to Ray, the resources requested for it, and the key of its reports (`disk_reports.py`)."""

    attempt: Attempt
    request: ResourceRequest
    key: str


class RayExecutor(Executor):
    """Runs attempts on the nodes of a cluster."""

    def __init__(self, address: str, root: str, workers: int | None = None) -> None:
        """Join the cluster at `address` ("auto" or "host:port"), or start a private one on this machine ("local").
        `workers` limits the number of CPUs. Raises RootError if a node does not share `root`, InputError if a node does
        not answer or its software differs from the driver's, and UsageError if the cluster cannot be joined.
        """
        self._waiting = deque[Attempt]()
        # A private cluster is started with `workers` CPUs, so it needs no further limit.
        self._workers = None if address == LOCAL else workers
        self._running: dict[ray.ObjectRef, _Sent] = {}
        self._recalled: set[ray.ObjectRef] = set()
        self._variables, self._reports = encode(sent_variables()), DiskReports()
        self._remote = ray.remote(max_retries=0)(run_encoded_attempt)
        self._nodes, self._refreshed = Nodes(), -REFRESH_SECONDS
        self._had_nodes = time.monotonic()
        self._closing = contextlib.ExitStack()
        with self._closing:
            expected = self._closing.enter_context(nonce_below(root))
            self._closing.enter_context(connected(address, workers))
            self._expected, self._head = encode(expected), Head()
            self._compiling, self._asked = False, time.monotonic()
            self._refresh_if_due()
            probe(self._refresh, expected, self._variables)
            self._closing = self._closing.pop_all()  # start-up succeeded: from here on, only close() undoes it

    @property
    def slots(self) -> int:
        """The number of one-CPU attempts that can run at once. It is at least 1, so that an autoscaler sees demand."""
        self._refresh_if_due()
        return max(1, min(self._nodes.cpus, self._workers or self._nodes.cpus))

    @property
    def compiling(self) -> bool:
        """True from the time when a node announces that it is compiling kernels until the next attempt ends."""
        return self._compiling

    def written(self, step_directory: str) -> int:
        """Return what the step's running attempts have written, according to their nodes' latest reports."""
        self._reports.refresh(sent.key for sent in self._running.values())
        own = (sent.key for sent in self._running.values() if sent.attempt.step_directory == step_directory)
        return self._reports.total(own)

    def submit(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        self._launch()

    def wait(self, timeout: float) -> list[Outcome]:
        if not self._running:
            time.sleep(timeout)
            return []
        with connection_errors():
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
            if ready:
                ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        ended = [outcome for reference in ready if (outcome := self._collect(reference)) is not None]
        self._launch()
        self._compiling = not ended and (self._compiling or self._asked_whether_compiling())
        return ended

    def _asked_whether_compiling(self) -> bool:
        """Return True if a node has announced that it is compiling kernels. Look for announcements at most once
        every REFRESH_SECONDS, because looking for one may require a request to a store.
        """
        if time.monotonic() - self._asked < REFRESH_SECONDS:
            return False
        self._asked = time.monotonic()
        return take_announcement(decode(self._expected, Expected))

    def cancel(self, *step_directories: str) -> None:
        """Kill the steps' running attempts and forget all their attempts, but stay connected to the cluster."""
        stopped = frozenset(step_directories)
        self._waiting = deque(one for one in self._waiting if one.step_directory not in stopped)
        self._kill([sent for sent in self._running.items() if sent[1].attempt.step_directory in stopped])
        self._launch()

    def _kill(self, running: Sequence[tuple[ray.ObjectRef, _Sent]]) -> None:
        references = [reference for reference, _ in running]
        for reference in references:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.cancel(reference, force=True)  # kills the Ray worker, and with it its fork server and children
        if references:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(references, num_returns=len(references), timeout=CANCEL_SECONDS)
        for reference in references:
            self._running.pop(reference, None)
            self._recalled.discard(reference)

    def close(self) -> None:
        """Kill running attempts, leave or stop the cluster, and remove the nonce file. May be called twice."""
        self._waiting.clear()
        self._kill(list(self._running.items()))
        self._closing.close()

    def _collect(self, reference: ray.ObjectRef) -> Outcome | None:
        """Return the outcome of an attempt, or None if the attempt never started and is queued again."""
        sent, recalled = self._running.pop(reference), reference in self._recalled
        self._recalled.discard(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.TaskCancelledError as error:
            if not recalled:
                return failures.outcome_of(error, sent.attempt)
            answer = None
        except ray.exceptions.RayError as error:
            return failures.outcome_of(error, sent.attempt)
        if answer is None:
            self._waiting.append(sent.attempt)
            self._refresh()  # a node has joined or left since the attempt was sent
            return None
        return decode(answer, Outcome)

    def _launch(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            attempt = self._waiting.popleft()
            self._refresh_if_due()
            request = self._nodes.request(attempt.cpus, attempt.memory_bytes, attempt.exclusive)
            name = f"{attempt.stage} {attempt.phase}".strip()  # few names, since Ray's dashboard groups tasks by name
            function = self._remote.options(name=name, **request.options())
            key, sparing = new_key(), self._nodes.sparing
            with connection_errors():
                reference = function.remote(encode(attempt), self._expected, sparing, self._variables, key)
            self._running[reference] = _Sent(attempt, request, key)

    def _has_room(self, attempt: Attempt) -> bool:
        """Return True if the cap on CPUs allows this attempt to run now; Ray alone would fill the whole cluster."""
        if self._workers is None or not self._running:
            return True
        return sum(sent.attempt.cpus for sent in self._running.values()) + attempt.cpus <= self._workers

    def _refresh_if_due(self) -> None:
        if time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._refresh()

    def _refresh(self) -> tuple[Node, ...]:
        """Update the list of nodes, and recall attempts that none of them can run; return the nodes in use."""
        self._refreshed = time.monotonic()
        if not self._head.answers():
            return self._nodes.used
        self._nodes = choose(self._head.nodes())
        if self._nodes.used:
            self._had_nodes = time.monotonic()
            self._recall_impossible()
        elif time.monotonic() - self._had_nodes > NO_NODE_SECONDS and self._running:
            raise StepFailedError(
                f"no node of the Ray cluster has had a CPU for {NO_NODE_SECONDS / 60:.0f} minutes (see `ray status`); "
                "start a node with CPUs, or find out why the autoscaler starts none, and run again: finished work is "
                "kept"
            )
        return self._nodes.used

    def _recall_impossible(self) -> None:
        """Cancel attempts that would wait forever because no remaining node can run them; `_collect` requeues them."""
        for reference, sent in self._running.items():
            if reference not in self._recalled and not self._nodes.can_satisfy(sent.request):
                self._recalled.add(reference)
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(reference)
