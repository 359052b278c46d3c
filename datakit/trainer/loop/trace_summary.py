"""Summarizes a trace of training steps: how long the devices computed, communicated, copied and waited for the host,
and which operations took the most time.

    summary = summarize("data/my-run/train-0123456789ab")

The events of one thread or stream are nested. An event counts with its own time only, without the events inside it. The
shares refer to the time from the first to the last operation, on an average device. Communication that happens while
the same device computes is listed as overlapped, and not counted twice. An operation's waits, such as those for other
devices, are part of it.

On a CPU, the devices of a process share the threads of XLA. Operations name their device, and events inside them belong
to it. If none does, all threads together are one device. Whatever time a device has no operation in is time in which it
waited for the host.

Cost: one pass over the trace (about 12 s for a million events), in memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from datakit.errors import UsageError
from datakit.trainer.loop.tracing import FOLDER

Kind = Literal["compute", "communication", "copy", "wait"]
Span = tuple[float, float]  # start and end in seconds
HOST = re.compile(r"^(ThunkExecutor|ThreadpoolListener::|.*LoadedExecutable::Execute)")  # it starts operations
COMMUNICATION = re.compile(  # the names of XLA, with hyphens, and of JAX, with underscores
    r"all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|collective|nccl|rendezvous"
    r"|(?<![a-z])(send|recv|p(sum|max|min|mean|permute|broadcast))(?![a-z])",
    re.IGNORECASE,
)
COPY = re.compile(r"memcpy|^copy(-start|-done)?(\.\d+)?$|transfer", re.IGNORECASE)
WAIT = re.compile(r"^(Wait|.*wait for|.*::Await)", re.IGNORECASE)
_NUMBER = re.compile(r"^end: |(\.\d+)+$")  # XLA numbers operations, and marks their ends on a CPU


class Event(NamedTuple):
    """An operation on one thread or stream; times in seconds."""

    name: str
    start: float
    end: float
    device: int | None = None  # on a CPU, the device that an operation names


@dataclass(frozen=True)
class TraceSummary:
    """Seconds on an average device. `idle` is the time in which the device waited for the host."""

    trace: str
    devices: int
    seconds: float
    compute: float
    communication: float  # without the part that overlaps with computation
    overlapped: float  # communication during computation
    copy: float
    idle: float
    operations: dict[str, float]  # own time by operation, on all devices, longest first

    def rows(self) -> list[list[str]]:
        """Return the table: what, seconds, share of the time."""
        parts = {
            "compute": self.compute,
            "communication": self.communication,
            "copies": self.copy,
            "waiting for the host": self.idle,
            "(communication during computation)": self.overlapped,
        }
        return [[name, f"{value:.3f}", f"{value / max(self.seconds, 1e-12):.1%}"] for name, value in parts.items()]


def summarize(directory: str) -> TraceSummary:
    """Summarize the newest trace in a run's directory. Raises UsageError if there is none, or if no operation of a
    device was recorded.
    """
    traces = sorted((Path(directory) / FOLDER).rglob("*.xplane.pb"))
    if not traces:
        raise UsageError(f"{directory} has no trace; set log.profile = [first, end] in the run file, and train")
    devices = _devices(jax.profiler.ProfileData.from_file(str(traces[-1])))
    if not devices:
        raise UsageError(f"{traces[-1]} holds no operation of a device")
    return of_devices(devices, str(traces[-1]))


def of_devices(devices: Sequence[Sequence[Sequence[Event]]], trace: str = "") -> TraceSummary:
    """Summarize the events of each device's threads or streams."""
    start = min(event.start for lines in devices for line in lines for event in line)
    end = max(event.end for lines in devices for line in lines for event in line)
    operations, times = defaultdict[str, float](float), defaultdict[str, float](float)
    for lines in devices:
        spans: dict[Kind, list[Span]] = {"compute": [], "communication": [], "copy": [], "wait": []}
        for name, span in (own for line in lines for own in own_spans(whole_operations(line))):
            spans[kind_of(name)].append(span)
            if kind_of(name) != "wait":
                operations[_NUMBER.sub("", name)] += span[1] - span[0]
        for name, seconds in _parts(spans).items():
            times[name] += seconds / len(devices)
    idle = end - start - times["compute"] - times["communication"] - times["copy"]
    longest = dict(sorted(operations.items(), key=lambda item: -item[1]))
    return TraceSummary(trace, len(devices), end - start, **times, idle=max(0.0, idle), operations=longest)


def _parts(spans: dict[Kind, list[Span]]) -> dict[str, float]:
    compute, communication = union(spans["compute"]), union(spans["communication"])
    both, all_three = union(compute + communication), union(compute + communication + spans["copy"])
    return {
        "compute": length(compute),
        "communication": length(both) - length(compute),
        "overlapped": max(0.0, length(compute) + length(communication) - length(both)),
        "copy": length(all_three) - length(both),
    }


@lru_cache(1 << 16)
def kind_of(name: str) -> Kind:
    """Return what an operation does, by its name."""
    if HOST.search(name):
        return "wait"
    if COMMUNICATION.search(name):
        return "communication"
    if WAIT.search(name):
        return "wait"
    return "copy" if COPY.search(name) else "compute"


def whole_operations(events: Iterable[Event]) -> list[Event]:
    """Leave out waits inside operations, and communication inside communication (an operation meets the other devices).
    So their time counts as that of the operation around them.
    """
    found = []
    for event, around in _nested(events):
        kind, outer = kind_of(event.name), {kind_of(other.name) for other in around}
        waits = kind == "wait" and not HOST.search(event.name) and bool(outer - {"wait"})
        meets = kind == "communication" and kind in outer
        if not waits and not meets:
            found.append(event)
    return found


def own_spans(events: Iterable[Event]) -> list[tuple[str, Span]]:
    """Return the parts of each event that no event inside it covers. Events of one thread are nested or disjoint."""
    found: list[tuple[str, Span]] = []
    open_events: list[list[Any]] = []  # [name, end, where its own time goes on]

    def close(until: float) -> None:
        while open_events and open_events[-1][1] <= until:
            name, end, own_from = open_events.pop()
            if end > own_from:
                found.append((name, (own_from, end)))
            if open_events:
                open_events[-1][2] = max(open_events[-1][2], end)

    for name, start, end, _ in sorted(events, key=_outer_first):
        close(start)
        if open_events and start > open_events[-1][2]:
            found.append((open_events[-1][0], (open_events[-1][2], start)))
            open_events[-1][2] = start
        open_events.append([name, end, start])
    close(float("inf"))
    return found


def _outer_first(event: Event) -> tuple[float, float]:
    return event.start, -event.end


def _nested(events: Iterable[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each event of a thread with the events around it, outermost first. The list changes afterwards."""
    around = list[Event]()
    for event in sorted(events, key=_outer_first):
        while around and around[-1].end <= event.start:
            around.pop()
        yield event, around
        around.append(event)


def union(spans: Iterable[Span]) -> list[Span]:
    """Merge overlapping spans.
    >>> union([(0, 2), (5, 6), (1, 3)])
    [(0, 3), (5, 6)]
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> float:
    """Return the total length of disjoint spans."""
    return sum(end - start for start, end in spans)


def by_device(threads: Iterable[Iterable[Event]]) -> list[list[list[Event]]]:
    """Return the events of each device of a CPU by thread. An event belongs to the device that it names, or that the
    innermost event around it names. Other events are of the host; if no event names a device, there is one device.
    """
    devices = defaultdict[int | None, list[list[Event]]](list)
    for thread in threads:
        parts = defaultdict[int | None, list[Event]](list)
        for event, around in _nested(thread):
            named = (outer.device for outer in (event, *reversed(around)))
            parts[next((device for device in named if device is not None), None)].append(event)
        for device, events in parts.items():
            devices[device].append(events)
    hosts = devices.pop(None, [])
    return list(devices.values()) or [hosts]


def _devices(data: Any) -> list[list[list[Event]]]:
    """Return the events by device and by thread or stream; the host's CPU counts if there is no other device."""
    accelerators, processor = [], []
    for plane in data.planes:
        if plane.name.startswith("/device:") and "CUSTOM" not in plane.name:
            lines = [line for line in plane.lines if line.name.startswith(("Stream", "XLA Ops"))]
            accelerators.append([_events(line) for line in lines])
        elif plane.name == "/host:CPU":
            processor.extend(line for line in plane.lines if line.name.startswith("tf_XLA"))
    found = accelerators or by_device(map(_operations, processor))
    return [device for device in ([line for line in lines if line] for lines in found) if device]


def _events(line: Any) -> list[Event]:
    return [Event(event.name, event.start_ns / 1e9, event.end_ns / 1e9) for event in line.events]


def _operations(line: Any) -> list[Event]:
    """Return a thread's events with their devices, whose look-up takes six times as long as the rest."""
    return [
        Event(event.name, event.start_ns / 1e9, event.end_ns / 1e9, dict(event.stats).get("device_ordinal"))
        for event in line.events
    ]
