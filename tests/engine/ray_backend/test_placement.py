"""Attempts go to nodes that have room, and do not wait for good on a node that another program uses."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import psutil
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.ledger.ledger import AttemptLine, read_ledger
from datakit.engine.observe.observer import Observer
from datakit.engine.ray_backend import executor as backend
from datakit.engine.ray_backend import placement
from datakit.engine.ray_backend.disk_reports import DiskReports
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.ray_backend.nodes import Node, Nodes, ResourceRequest, choose
from datakit.engine.ray_backend.placement import Accounts, Choice
from datakit.engine.scheduler.driver import run_step
from tests.support.engine import engine_tasks, ray_tasks
from tests.support.engine.attempts import attempt, sleeping
from tests.support.engine.runs import DEADLINE_SECONDS
from tests.support.faults.cluster import SharedCluster, raylet_of, wait_until
from tests.support.processes import ended

NODES: tuple[Node, ...] = (
    {"NodeID": "a", "Resources": {"CPU": 4.0, "memory": 800.0}},
    {"NodeID": "b", "Resources": {"CPU": 2.0, "memory": 500.0}},
)
ROOM = {"a": NODES[0]["Resources"], "b": NODES[1]["Resources"]}
REQUESTS = st.builds(ResourceRequest, st.integers(1, 4), st.integers(1, 800))


@given(steps=st.lists(st.tuples(REQUESTS, st.booleans()), max_size=40))
def test_no_node_gets_more_than_it_has(steps: list[tuple[ResourceRequest, bool]]) -> None:
    accounts, sent = Accounts(), list[tuple[str, ResourceRequest]]()
    for request, one_ends in steps:
        if one_ends and sent:
            accounts.remove(*sent.pop(0))
        choice = accounts.choose(NODES, request)
        if isinstance(choice, str):
            accounts.add(choice, request)
            sent.append((choice, request))
        for name, room in ROOM.items():
            own = [each for where, each in sent if where == name]
            assert sum(each.cpus for each in own) <= room["CPU"]
            assert sum(each.memory for each in own) <= room["memory"]
        free = [name for name in ROOM if not any(where == name for where, _ in sent)]
        if choice is Choice.LATER and request.cpus <= 2 and request.memory <= 500:
            assert not free, "an attempt waits only if no node has room"
    for one in sent:
        accounts.remove(*one)
    assert accounts.cpus == 0


def test_attempts_are_spread_over_the_nodes() -> None:
    accounts, request = Accounts(), ResourceRequest(1, 100)
    chosen = list[str | Choice]()
    for _ in range(7):
        chosen.append(accounts.choose(NODES, request))
        if isinstance(chosen[-1], str):
            accounts.add(chosen[-1], request)
    assert sorted(map(str, chosen[:6])) == ["a"] * 4 + ["b"] * 2
    assert chosen[6] is Choice.LATER


def test_ray_chooses_if_no_node_is_known_or_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, request = Accounts(), ResourceRequest(1, 100)
    assert accounts.choose([], request) is Choice.RAY, "so that an autoscaler sees demand"
    accounts.suspect("a")
    assert accounts.choose(NODES, request) == "b"
    accounts.suspect("b")
    assert accounts.choose(NODES, request) is Choice.RAY
    monkeypatch.setattr(placement, "SUSPECT_SECONDS", -1.0)
    accounts.suspect("a")
    assert accounts.choose(NODES, request) == "a", "after a while, the node is used again"


def test_attempts_whose_node_ray_chooses_count_as_well() -> None:
    accounts, request = Accounts(), ResourceRequest(1, 100)
    accounts.add(None, ResourceRequest(6, 100))
    assert accounts.choose(NODES, request) is Choice.LATER
    accounts.remove(None, ResourceRequest(6, 100))
    assert accounts.choose(NODES, request) == "a"


def unconnected(nodes: Iterable[Node]) -> RayExecutor:
    """Return an executor that has joined no cluster and sends its attempts nowhere."""
    executor = RayExecutor.__new__(RayExecutor)
    executor._waiting, executor._accounts, executor._workers = deque(), Accounts(), None
    executor._running, executor._recalled, executor._reports = {}, set(), DiskReports()
    executor._nodes, executor._refreshed = choose({"Alive": True, **node} for node in nodes), math.inf
    return executor


def note_sent(executor: RayExecutor, one: Attempt, request: ResourceRequest, node: str | None) -> None:
    """Stand in for `_send`: note the attempt as sent, with the number at the end of its task's key as its key."""
    key = one.task.key.rpartition("-")[2]
    executor._running[cast(ray.ObjectRef, key)] = backend._Sent(one, request, key, node, time.monotonic())
    executor._accounts.add(node, request)


def test_submitting_takes_no_longer_if_many_attempts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[ResourceRequest]()

    def count(nodes: Nodes, cpus: int, memory: int, exclusive: bool) -> ResourceRequest:
        tried.append(ResourceRequest(cpus, memory))
        return tried[-1]

    monkeypatch.setattr(Nodes, "request", count)
    monkeypatch.setattr(RayExecutor, "_send", note_sent)
    executor = unconnected(NODES)
    for number in range(1000):
        executor.submit(replace(attempt("never:runs", "", number), memory_bytes=700))
    assert (len(executor._running), len(executor._waiting)) == (1, 999)
    tried.clear()
    executor.submit(replace(attempt("never:runs", "", 1000), memory_bytes=700))
    assert len(tried) <= backend.LOOK_AHEAD


def test_small_attempts_overtake_large_ones_until_these_are_sent_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayExecutor, "_send", note_sent)
    executor = unconnected(NODES)
    for number, memory in enumerate((700, 600, 700, 300, 300)):
        executor.submit(replace(attempt("never:runs", "", number), memory_bytes=memory))
    assert [(sent.request.memory, sent.node) for sent in executor._running.values()] == [(700, "a"), (300, "b")]
    assert [one.attempt.memory_bytes for one in executor._waiting] == [600, 700, 300], "in the order of submission"
    monkeypatch.setattr(backend, "OWN_CHOICE_SECONDS", -1.0)
    executor._launch()
    assert [(sent.request.memory, sent.node) for sent in executor._running.values()][2:] == [
        (600, None),
        (700, None),
        (300, None),
    ]


@pytest.mark.parametrize("ended", ["0", "1"])
def test_attempts_are_counted_on_the_nodes_that_ray_has_chosen(ended: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayExecutor, "_send", note_sent)
    monkeypatch.setattr(backend, "OWN_CHOICE_SECONDS", -1.0)
    executor = unconnected({"NodeID": name, "Resources": {"CPU": 1.0, "memory": 2.0**40}} for name in "ab")
    for number in range(2):
        executor.submit(attempt("never:runs", "", number))
    executor._reports._nodes = {"0": "a", "1": "b"}
    executor._note_nodes()
    executor._forget(cast(ray.ObjectRef, ended))
    monkeypatch.setattr(backend, "OWN_CHOICE_SECONDS", math.inf)
    executor.submit(attempt("never:runs", "", 2))
    sent = list(executor._running.values())
    assert [one.node for one in sent] == (["b", "a"] if ended == "0" else ["a", "b"]), "to the node that is free"
    for reference in list(executor._running):
        executor._forget(reference)
    assert not executor._accounts.cpus


def test_attempts_that_have_begun_are_never_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayExecutor, "_send", note_sent)
    executor = unconnected(NODES)
    executor.submit(attempt("never:runs", "", 0))
    executor._reports.read_at = math.inf
    (sent,) = executor._running.values()
    assert executor._has_not_begun(sent)
    executor._reports._nodes = {"0": "a"}
    executor._note_nodes()
    executor._reports._nodes = {}  # the head node has forgotten the report
    executor._note_nodes()
    (sent,) = executor._running.values()
    assert not executor._has_not_begun(sent)


def test_a_recall_ends_an_attempt_that_begins_meanwhile(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, server, worker = sleeping(executor, tmp_path)
    (file,) = tmp_path.glob("pids-*")
    monkeypatch.setattr(RayExecutor, "_has_not_begun", lambda self, sent: sent.node is not None)  # not reported yet
    executor._refresh()
    outcomes = list[Outcome]()

    def begun_again() -> bool:
        outcomes.extend(executor.wait(0.1))
        return int(file.read_text().split()[0]) != child.pid

    assert wait_until(begun_again, DEADLINE_SECONDS)
    assert wait_until(lambda: ended(child), 10), "the first process does not run beside the second"
    assert not outcomes, "the attempt is not blamed"
    assert [sent.node for sent in executor._running.values()] == [None]
    assert not ended(worker) and not ended(server), "they serve further attempts"
    executor.cancel(str(tmp_path))
    assert not executor._running and not executor._accounts.cpus


@contextmanager
def occupied(node: str, folder: Path) -> Iterator[None]:
    """Another program uses the node's only slot until the end of the block."""
    release = folder / "release"

    def occupy(started: str, release: str) -> None:
        import pathlib
        import time

        pathlib.Path(started).touch()
        while not pathlib.Path(release).exists():
            time.sleep(0.05)

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    other = ray.remote(num_cpus=1, max_retries=0)(occupy)
    reference = other.options(scheduling_strategy=strategy).remote(str(folder / "started"), str(release))
    try:
        assert wait_until((folder / "started").exists, 60)
        yield
        assert not ray.wait([reference], timeout=0)[0], "the other program still has the node"
    finally:
        release.touch()
        ray.get(reference)


def second_node(cluster: SharedCluster) -> str:
    """Return the id of the cluster's second node. Ray may still list nodes that have left."""
    command = psutil.Process(raylet_of(cluster.second)).cmdline()
    (node,) = [each["NodeID"] for each in ray.nodes() if f"--raylet_socket_name={each['RayletSocketName']}" in command]
    return node


def test_attempts_leave_a_node_that_another_program_uses(
    executor: RayExecutor, shared_cluster: SharedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "BEGIN_SECONDS", 4.0)
    with occupied(second_node(shared_cluster), tmp_path):
        step = engine_tasks.number_step(str(tmp_path / "step"))
        manifest = run_step(step, ray_tasks.gated_numbers(6), lambda: executor, Observer())
    assert manifest.totals.rows == 6
    assert raylet_of(shared_cluster.second) not in manifest.details["raylets"]
    lines = [line for line in read_ledger(str(tmp_path / "step")) if isinstance(line, AttemptLine)]
    assert [line.cause for line in lines] == [Cause.DONE] * 6, "an attempt that has not begun is not blamed"


def test_only_a_recall_makes_an_attempt_leave_such_a_node(
    executor: RayExecutor, shared_cluster: SharedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "BEGIN_SECONDS", math.inf)
    outcomes = list[Outcome]()

    def have_ended(count: int) -> bool:
        executor.written(str(tmp_path))
        outcomes.extend(executor.wait(0.2))
        return len(outcomes) == count

    with occupied(second_node(shared_cluster), tmp_path):
        for number in range(2):
            executor.submit(attempt("ray_tasks:write_when_released", tmp_path, number, number=number, gate=""))
        assert wait_until(lambda: have_ended(1), DEADLINE_SECONDS)
        assert not wait_until(lambda: have_ended(2), 5), "Ray leaves the other attempt on its node"
        monkeypatch.setattr(backend, "BEGIN_SECONDS", 0.0)
        assert wait_until(lambda: have_ended(2), DEADLINE_SECONDS)
    assert [outcome.cause for outcome in outcomes] == [Cause.DONE] * 2


def test_attempts_that_wait_are_visible_to_an_autoscaler(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = list[str | None]()
    send = RayExecutor._send

    def note(self: RayExecutor, one: backend.Attempt, request: ResourceRequest, node: str | None) -> None:
        nodes.append(node)
        send(self, one, request, node)

    monkeypatch.setattr(RayExecutor, "_send", note)
    gate = tmp_path / "gate"
    for number in range(4):
        executor.submit(attempt("ray_tasks:write_when_released", tmp_path, number, number=number, gate=str(gate)))
    assert len(set(nodes)) == len(nodes) == 2 and None not in nodes, "one attempt per slot"
    monkeypatch.setattr(backend, "OWN_CHOICE_SECONDS", 0.0)
    assert executor.wait(0.1) == []
    assert nodes[2:] == [None, None], "the others wait in Ray"
    gate.touch()
    ended, outcomes = 0, []
    while len(outcomes) < 4 and ended < DEADLINE_SECONDS:
        outcomes += executor.wait(1.0)
        ended += 1
    assert [outcome.cause for outcome in outcomes] == [Cause.DONE] * 4
