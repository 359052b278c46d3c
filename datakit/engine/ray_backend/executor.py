"""Attempts on a Ray cluster: each one a Ray core task with `max_retries=0`, so that all retrying is the driver's.

Ray leases slots, places tasks and notices lost nodes; it never sees data (results are a few hundred bytes, files go
through the root) and never judges: whatever it reports becomes an Outcome (`failures.py`). Only this module and its
neighbours `ray_*.py` import ray; the driver imports them when a cluster is asked for.

What is submitted goes to Ray at once: the driver's window is three attempts a slot, so the driver stays small whatever
the number of tasks, and two thirds of the window wait in Ray, where an autoscaler sees them as demand. It may triple
the cluster with each round; by its own default it does not more than double it.

Cost: 2 s to start a private cluster, 0.5 ms a task, 1.1 GB of processes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass

# Ray prints what its nodes complain of (a worker that died) on this process's standard output, where `--json` goes, and
# reads only once, when it is imported, what to leave out. Everything: each complaint is an Outcome's message.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import ray
import ray.exceptions

from datakit.engine.executor import Attempt, Outcome
from datakit.engine.ray_backend import failures
from datakit.engine.ray_backend.agreement import nonce_below
from datakit.engine.ray_backend.connection import LOCAL, Head, connected, connection_errors
from datakit.engine.ray_backend.nodes import Ask, Node, Nodes, choose
from datakit.engine.ray_backend.probe import environment, probe
from datakit.engine.ray_backend.worker import run_encoded_attempt
from datakit.engine.task import decode, encode
from datakit.errors import StepFailedError

REFRESH_SECONDS = 2.0
CANCEL_SECONDS = 3.0
NO_NODE_SECONDS = 900.0  # an autoscaler takes minutes to bring the first


@dataclass(frozen=True)
class _Sent:
    """An attempt that Ray has, and what it asked for."""

    attempt: Attempt
    ask: Ask


class RayExecutor:
    """The cluster backend of the Executor seam."""

    def __init__(self, address: str, root: str, workers: int | None = None) -> None:
        """Joins the cluster at `address` ("auto", "host:port"), or starts a private one on this machine ("local").

        `workers` caps the CPUs in use. Raises RootError where a node does not share `root`, InputError where its
        versions differ, UsageError where the cluster cannot be joined.
        """
        self._waiting = deque[Attempt]()
        self._workers = None if address == LOCAL else workers  # a private cluster is no larger than that
        self._running: dict[ray.ObjectRef, _Sent] = {}
        self._called_back: set[ray.ObjectRef] = set()
        self._remote = ray.remote(max_retries=0, runtime_env=environment())(run_encoded_attempt)
        self._nodes, self._refreshed = Nodes(), -REFRESH_SECONDS
        self._had_nodes = time.monotonic()
        self._closing = contextlib.ExitStack()
        with self._closing:
            expected = self._closing.enter_context(nonce_below(root))
            self._closing.enter_context(connected(address, workers))
            self._expected, self._head = encode(expected), Head()
            self._refresh()
            probe(self._look, expected)
            self._closing = self._closing.pop_all()  # nothing failed: close() does it

    @property
    def slots(self) -> int:
        """How many one-CPU attempts run at the same time; at least one, so that an empty cluster sees a demand."""
        self._refresh()
        return max(1, min(self._nodes.cpus, self._workers or self._nodes.cpus))

    def submit(self, attempt: Attempt) -> None:
        """Hand the attempt to Ray, which starts it as soon as a slot is free."""
        self._waiting.append(attempt)
        self._launch()

    def wait(self, timeout: float) -> list[Outcome]:
        """The attempts that ended since the last call; waits up to `timeout` seconds for the first."""
        if not self._running:
            time.sleep(timeout)
            return []
        with connection_errors():
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
            if ready:
                ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        ended = [outcome for reference in ready if (outcome := self._take(reference)) is not None]
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
            self._called_back.clear()

    def close(self) -> None:
        """Kill what runs, leave the cluster (stop a private one), remove the nonce. A second call does nothing."""
        self.abandon()
        self._closing.close()

    def _take(self, reference: ray.ObjectRef) -> Outcome | None:
        """How an attempt ended; None where it never began, and waits again."""
        sent, called_back = self._running.pop(reference), reference in self._called_back
        self._called_back.discard(reference)
        try:
            answer = ray.get(reference)
        except ray.exceptions.TaskCancelledError as error:
            if not called_back:
                return failures.outcome_of(error, sent.attempt)
            answer = None
        except ray.exceptions.RayError as error:
            return failures.outcome_of(error, sent.attempt)
        if answer is None:
            self._waiting.append(sent.attempt)
            self._look()  # a node has joined or left since it was sent
            return None
        return decode(answer, Outcome)

    def _launch(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            attempt = self._waiting.popleft()
            self._refresh()
            ask = self._ask(attempt)
            name = f"{attempt.stage} {attempt.phase}".strip()  # few different ones: Ray's dashboard groups by it
            function = self._remote.options(name=name, **ask.options())
            with connection_errors():
                reference = function.remote(encode(attempt), self._expected, self._nodes.sparing)
            self._running[reference] = _Sent(attempt, ask)

    def _has_room(self, attempt: Attempt) -> bool:
        """Under a cap, Ray gets only what may run now: it would fill the cluster otherwise."""
        if self._workers is None or not self._running:
            return True
        return sum(sent.attempt.cpus for sent in self._running.values()) + attempt.cpus <= self._workers

    def _ask(self, attempt: Attempt) -> Ask:
        """What to ask for: no more than the biggest node has.

        An attempt that must run alone asks for all of that node's memory (every attempt asks for some), unless it wants
        no more than its share of it.
        """
        cpus, memory = self._nodes.largest("CPU"), self._nodes.largest("memory")
        alone = attempt.exclusive and attempt.memory_bytes * cpus > attempt.cpus * memory
        return Ask(
            cpus=min(attempt.cpus, cpus or attempt.cpus),
            memory=memory if alone else min(attempt.memory_bytes, memory or attempt.memory_bytes),
            avoided=self._nodes.avoided,
        )

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._look()

    def _look(self) -> tuple[Node, ...]:
        """See which nodes are there; call back what none of them can ever run."""
        self._refreshed = time.monotonic()
        if not self._head.answers():
            return self._nodes.used
        self._nodes = choose(self._head.nodes())
        if self._nodes.used:
            self._had_nodes = time.monotonic()
            self._call_back()
        elif time.monotonic() - self._had_nodes > NO_NODE_SECONDS and self._running:
            raise StepFailedError(
                f"no node of the Ray cluster has had a CPU for {NO_NODE_SECONDS / 60:.0f} minutes (`ray status` shows "
                "what is there); start a node with CPUs, or see why the autoscaler brings none, and run again: what is "
                "done is kept"
            )
        return self._nodes.used

    def _call_back(self) -> None:
        """What was meant for a node that has left since would wait for ever: it is sent again, asking for less."""
        for reference, sent in self._running.items():
            if reference not in self._called_back and not self._nodes.can_give(sent.ask):
                self._called_back.add(reference)
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    ray.cancel(reference)
