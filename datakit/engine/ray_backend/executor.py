"""Submits attempts to a Ray cluster: sets resource requests, caps CPUs, and recalls attempts that do not begin.

Each attempt is a Ray core task with `max_retries=0`, so only the driver retries. Ray leases slots and notices lost
nodes. It never sees data (results are a few hundred bytes, and files go through the root), and decides
nothing about failures: every error that it reports becomes an Outcome (`failures.py`). Only this package imports ray,
and the driver imports this package only if the run uses a cluster.

A submitted attempt is sent to a node as soon as this node has room (`placement.py`) and, if the number of CPUs is
capped, the cap permits. The driver submits at most two attempts per slot at a time, so its memory does not grow with
the number of tasks. Those that have waited for OWN_CHOICE_SECONDS are sent to Ray without a node: an autoscaler sees
them there as demand, and if other programs use the cluster, Ray knows best where there is room. This demand is enough
to double the cluster, which is the most that an autoscaler does in one step by default. Cost: 2 s to start a private
cluster, 0.5 ms per task, and 1.1 GB of memory for Ray's processes.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

# Ray prints messages from its nodes (for example, about a worker's death) to this process's standard output, which is
# reserved for `--json`. This pattern, which Ray reads only once, on import, suppresses all of these messages. None of
# them is lost, since each also becomes the message of an Outcome.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datakit.engine.executor import Attempt, Executor, Outcome
from datakit.engine.ray_backend import failures
from datakit.engine.ray_backend.agreement import Expected, nonce_below, take_announcement
from datakit.engine.ray_backend.connection import LOCAL, Head, connected, connection_errors
from datakit.engine.ray_backend.disk_reports import DiskReports, new_key
from datakit.engine.ray_backend.node_environment import sent_variables
from datakit.engine.ray_backend.nodes import Node, Nodes, ResourceRequest, choose
from datakit.engine.ray_backend.placement import Accounts, Choice
from datakit.engine.ray_backend.probe import probe
from datakit.engine.ray_backend.worker import run_encoded_attempt
from datakit.engine.task import decode, encode
from datakit.errors import StepFailedError

REFRESH_SECONDS = 2.0  # a refresh takes 0.2 ms to contact the head node, plus the time of a request for the node list
CANCEL_SECONDS = 3.0  # how long `cancel` waits for Ray to kill workers
OWN_CHOICE_SECONDS = 10.0  # how long an attempt waits for room on a node; autoscalers look for demand every 5 s
BEGIN_SECONDS = 15.0  # how long an attempt may wait on its node before another one is sought; a worker starts in 2 s
LOOK_AHEAD = 100  # how many attempts that do not fit now may be overtaken; the driver looks at them for each attempt
NO_NODE_SECONDS = 900.0  # how long to wait for a node: an autoscaler takes minutes to start the first one


@dataclass(frozen=True)
class _Waiting:
    """An attempt that has not been handed to Ray. since: when it was submitted, on the monotonic clock."""

    attempt: Attempt
    since: float


@dataclass(frozen=True)
class _Sent:
    """An attempt handed to Ray, the resources requested for it, and the key of its reports (`disk_reports.py`).

    at: when it was sent. begun: True if it is known to have begun. node: the id of the node on which it has begun or,
    until that is known, to which it was sent; None if Ray chooses the node.
    """

    attempt: Attempt
    request: ResourceRequest
    key: str
    node: str | None
    at: float
    begun: bool = False


class RayExecutor(Executor):
    """Runs attempts on the nodes of a cluster."""

    def __init__(self, address: str, root: str, workers: int | None = None) -> None:
        """Join the cluster at `address` ("auto" or "host:port"), or start a private one on this machine ("local").
        `workers` limits the number of CPUs. Raises RootError if a node does not share `root`, InputError if a node does
        not answer or its software differs from the driver's, and UsageError if the cluster cannot be joined.
        """
        self._waiting, self._accounts = deque[_Waiting](), Accounts()
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
        if self._reports.refresh(sent.key for sent in self._running.values()):
            self._note_nodes()
        own = (sent.key for sent in self._running.values() if sent.attempt.step_directory == step_directory)
        return self._reports.total(own)

    def _note_nodes(self) -> None:
        """Note which attempts have begun, and correct the accounts of their nodes: Ray chose some of the nodes."""
        for reference, sent in self._running.items():
            node = self._reports.node(sent.key)
            if node is not None and not sent.begun:
                self._accounts.remove(sent.node, sent.request)
                self._accounts.add(node, sent.request)
                self._running[reference] = replace(sent, node=node, begun=True)

    def submit(self, attempt: Attempt) -> None:
        self._waiting.append(_Waiting(attempt, time.monotonic()))
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
        self._waiting = deque(one for one in self._waiting if one.attempt.step_directory not in stopped)
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
            self._forget(reference)

    def close(self) -> None:
        """Kill running attempts, leave or stop the cluster, and remove the nonce file. May be called twice."""
        self._waiting.clear()
        self._kill(list(self._running.items()))
        self._closing.close()

    def _forget(self, reference: ray.ObjectRef) -> _Sent:
        sent = self._running.pop(reference)
        self._accounts.remove(sent.node, sent.request)
        self._recalled.discard(reference)
        return sent

    def _collect(self, reference: ray.ObjectRef) -> Outcome | None:
        """Return the outcome of an attempt, or None if the attempt never started and is queued again."""
        recalled, sent = reference in self._recalled, self._forget(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.TaskCancelledError as error:
            if not recalled:
                return failures.outcome_of(error, sent.attempt)
            answer = None
        except ray.exceptions.RayError as error:
            self._accounts.suspect(sent.node)
            return failures.outcome_of(error, sent.attempt)
        if answer is None:
            # Ray chooses the node now: the node has left or joined since the attempt was sent, or does not run it.
            self._waiting.appendleft(_Waiting(sent.attempt, since=-math.inf))
            self._refresh()
            return None
        return decode(answer, Outcome)

    def _launch(self) -> None:
        """Send waiting attempts, those that have waited longest first. While CPUs are free, later ones may overtake
        attempts that need more room than any node has.
        """
        self._refresh_if_due()
        kept, refused = deque[_Waiting](), None
        while self._waiting and len(kept) < LOOK_AHEAD and self._has_room(self._waiting[0].attempt):
            one = self._waiting.popleft()
            request = self._nodes.request(one.attempt.cpus, one.attempt.memory_bytes, one.attempt.exclusive)
            choice = self._choose(one, request, refused)
            if choice is not Choice.LATER:
                self._send(one.attempt, request, None if choice is Choice.RAY else choice)
                continue
            kept.append(one)
            refused = request
            if self._accounts.cpus >= self._nodes.cpus:
                break
        self._waiting.extendleft(reversed(kept))

    def _choose(self, one: _Waiting, request: ResourceRequest, refused: ResourceRequest | None) -> str | Choice:
        """Return where to send an attempt. refused: a request for which no node had room a moment ago, so that none
        has room for a larger one either.
        """
        if time.monotonic() - one.since > OWN_CHOICE_SECONDS:
            return Choice.RAY
        if refused is not None and request.cpus >= refused.cpus and request.memory >= refused.memory:
            return Choice.LATER
        return self._accounts.choose(self._nodes.used, request)

    def _send(self, attempt: Attempt, request: ResourceRequest, node: str | None) -> None:
        name = f"{attempt.stage} {attempt.phase}".strip()  # few names, since Ray's dashboard groups tasks by name
        function = self._remote.options(name=name, **_options(request, node))
        key, sparing = new_key(), self._nodes.sparing
        with connection_errors():
            reference = function.remote(encode(attempt), self._expected, sparing, self._variables, key)
        self._running[reference] = _Sent(attempt, request, key, node, time.monotonic())
        self._accounts.add(node, request)

    def _has_room(self, attempt: Attempt) -> bool:
        """Return True if the cap on CPUs allows this attempt to run now; Ray alone would fill the whole cluster."""
        if self._workers is None or not self._running:
            return True
        return self._accounts.cpus + attempt.cpus <= self._workers

    def _refresh_if_due(self) -> None:
        if time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._refresh()

    def _refresh(self) -> tuple[Node, ...]:
        """Update the list of nodes, and recall attempts that cannot run or have not begun; return the nodes in use."""
        self._refreshed = time.monotonic()
        if not self._head.answers():
            return self._nodes.used
        self._nodes = choose(self._head.nodes())
        if self._nodes.used:
            self._had_nodes = time.monotonic()
            self._recall()
        elif time.monotonic() - self._had_nodes > NO_NODE_SECONDS and self._running:
            raise StepFailedError(
                f"no node of the Ray cluster has had a CPU for {NO_NODE_SECONDS / 60:.0f} minutes (see `ray status`); "
                "start a node with CPUs, or find out why the autoscaler starts none, and run again: finished work is "
                "kept"
            )
        return self._nodes.used

    def _recall(self) -> None:
        """Cancel attempts that would wait forever because no remaining node can run them, and those that have not
        begun on their node, because another program uses it; `_collect` queues them again.
        """
        for reference, sent in self._running.items():
            if reference in self._recalled:
                continue
            if not self._nodes.can_satisfy(sent.request) or self._has_not_begun(sent):
                self._recalled.add(reference)
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(reference)

    def _has_not_begun(self, sent: _Sent) -> bool:
        """Return True if an attempt has waited on the node to which it was sent for longer than BEGIN_SECONDS."""
        waited = self._reports.read_at - sent.at
        return sent.node is not None and waited > BEGIN_SECONDS and not sent.begun


def _options(request: ResourceRequest, node: str | None) -> dict[str, Any]:
    """Return the options of a Ray remote function. If the node has left the cluster, Ray chooses another one."""
    if node is None:
        return request.options()
    strategy = NodeAffinitySchedulingStrategy(node, soft=True)
    return {"num_cpus": request.cpus, "memory": request.memory, "scheduling_strategy": strategy}
