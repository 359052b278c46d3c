"""The times of a trace add up, whatever is nested or overlaps; each operation counts with its own time."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from datakit.errors import UsageError
from datakit.trainer.loop.trace_summary import (
    Event,
    by_device,
    kind_of,
    length,
    of_devices,
    own_spans,
    summarize,
    union,
)
from datakit.trainer.loop.tracing import Tracing

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=12)


@given(SPANS)
def test_the_union_covers_each_moment_once(spans: list[tuple[int, int]]) -> None:
    covered = {moment for start, end in spans for moment in range(start, end)}
    assert length(union(spans)) == len(covered)


@given(st.data())
def test_nested_events_count_with_their_own_time(data: st.DataObject) -> None:
    events, owner = list[Event](), dict[int, str]()

    def nest(start: int, end: int, depth: int) -> None:
        while start < end and depth < 4:
            first = data.draw(st.integers(start, end - 1))
            last = data.draw(st.integers(first + 1, end))
            name = f"event-{len(events)}"
            events.append(Event(name, first, last))
            owner.update(dict.fromkeys(range(first, last), name))
            nest(first, last, depth + 1)
            start = last

    nest(0, data.draw(st.integers(1, 30)), 0)
    found = {moment: name for name, (start, end) in own_spans(events) for moment in range(int(start), int(end))}
    assert found == owner


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fusion.12", "compute"),
        ("loop_convert_fusion", "compute"),
        ("all-reduce-start.3", "communication"),
        ("ncclDevKernel_AllGather_RING_LL", "communication"),
        ("reduce-scatter.1", "communication"),
        ("all_gather.9", "communication"),
        ("all_reduce", "communication"),
        ("reduce_scatter.14", "communication"),
        ("all_to_all.2", "communication"),
        ("all-to-all.2", "communication"),
        ("psum.3", "communication"),
        ("psum_scatter", "communication"),
        ("pmax_1", "communication"),
        ("ppermute.1", "communication"),
        ("send-done.2", "communication"),
        ("recv_done", "communication"),
        ("wrapped_broadcast.3", "compute"),
        ("sendrecvless_fusion", "compute"),
        ("Rendezvous", "communication"),
        ("InvokeRendezvous", "communication"),
        ("Wait for rendezvous callback", "communication"),
        ("Wait: pending_threads=1/2", "wait"),
        ("ThreadpoolListener::Record", "wait"),
        ("[1] CommonPjRtLoadedExecutable::Execute (jit_psum)", "wait"),
        ("MemcpyD2H", "copy"),
        ("copy.41", "copy"),
        ("copy_bitcast_fusion", "compute"),
        ("ThunkExecutor::Execute (wait for completion)", "wait"),
    ],
)
def test_operations_are_told_apart_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_parts_add_up_to_the_whole_time() -> None:
    stream = [Event("fusion.1", 0, 4), Event("copy.2", 5, 6)]
    network = [Event("all-reduce.1", 3, 5)]
    other = [Event("fusion.1", 0, 10)]
    found = of_devices([[stream, network], [other]])
    assert (found.devices, found.seconds) == (2, 10)
    assert (found.compute, found.communication, found.overlapped, found.copy, found.idle) == (7, 0.5, 0.5, 0.5, 2)
    assert found.operations == {"fusion": 14, "all-reduce": 2, "copy": 1}


def test_waits_and_meetings_count_for_the_operation_around_them() -> None:
    """As XLA nests them on a CPU: neither twice, nor as waiting for the host."""
    meeting = [
        Event("all_gather.9", 1, 6),
        Event("InvokeRendezvous", 1, 2),
        Event("Rendezvous", 2, 6),
        Event("Wait: pending_threads=1/2", 3, 6),
    ]
    pool = [Event("dot_general.2", 6, 9), Event("SlinkyThreadPool::Await", 7, 9)]
    host = [Event("while.1", 9, 12), Event("ThunkExecutor::Execute", 10, 12), Event("fusion.3", 11, 12)]
    found = of_devices([[[Event("ThunkExecutor::Execute", 0, 12), *meeting, *pool, *host]]])
    assert (found.seconds, found.communication, found.compute, found.idle) == (12, 5, 5, 2)
    assert found.operations == {"all_gather": 5, "dot_general": 3, "while": 1, "fusion": 1}


def test_the_threads_of_a_processor_are_shared_by_its_devices() -> None:
    """One device computes while the other communicates, so neither hides the other."""
    threads = [
        [Event("all_gather.1", 0, 4, 0), Event("Rendezvous", 1, 4), Event("fusion.1", 4, 6, 1)],
        [Event("fusion.1", 0, 4, 1), Event("CommonPjRtLoadedExecutable::Execute", 4, 9)],
    ]
    devices = by_device(threads)
    assert [[[event.name for event in line] for line in device] for device in devices] == [
        [["all_gather.1", "Rendezvous"]],
        [["fusion.1"], ["fusion.1"]],
    ]
    found = of_devices(devices)
    assert (found.seconds, found.communication, found.compute, found.overlapped, found.idle) == (6, 2, 3, 0, 1)
    unnamed = [[event._replace(device=None) for event in thread] for thread in threads]
    assert by_device(unnamed) == [unnamed]


def test_a_real_trace_shows_the_product_that_was_computed(tmp_path: Path) -> None:
    product = jax.jit(lambda x: x @ x)
    square = jnp.ones((512, 512))
    product(square).block_until_ready()
    tracing = Tracing(str(tmp_path), (0, 1))
    tracing.at(0)
    for _ in range(3):
        square = product(square).block_until_ready()
    tracing.at(1)
    found = summarize(str(tmp_path))
    assert 0 < found.compute <= found.seconds
    assert found.operations


def test_a_real_trace_tells_the_devices_of_a_processor_apart(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2,), ("all",), (AxisType.Auto,), devices=jax.devices()[:2])
    square = jax.device_put(jnp.ones((256, 256)), NamedSharding(mesh, P("all")))
    added = jax.jit(lambda x: jnp.sum(x @ x.T, axis=0), out_shardings=NamedSharding(mesh, P()))
    added(square).block_until_ready()
    tracing = Tracing(str(tmp_path), (0, 1))
    tracing.at(0)
    for _ in range(3):
        added(square).block_until_ready()
    tracing.at(1)
    found = summarize(str(tmp_path))
    assert found.devices == 2
    assert found.communication > 0


def test_a_run_without_a_trace_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no trace; set log.profile = \[first, end\]"):
        summarize(str(tmp_path))
