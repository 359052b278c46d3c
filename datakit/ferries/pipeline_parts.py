"""Reads the cost of each stage of the pipeline, and the checksum of each step's output, from the JSON output of
`datakit run`, the ledgers and the manifests.

The tasks on a cluster are not descendants of the ferry's processes, so their memory and CPU time come from the ledgers,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datakit.engine.ledger.status import StepStatus, read_status
from datakit.ferries.calibration import Calibration
from datakit.ferries.ferry import Request
from datakit.ferries.record import Observed, Part, StepOutput
from datakit.storage import urls
from datakit.storage.manifest import read_manifest


def step_outputs(found: Mapping[str, Any]) -> dict[str, StepOutput]:
    """Return the identity and the checksum of each step, by label. found: the JSON output of `datakit run`."""
    manifests = {label: read_manifest(directory) for label, directory in found["steps"].items()}
    return {label: StepOutput(one.identity, one.checksum or "") for label, one in manifests.items()}


def pipeline_parts(found: Mapping[str, Any], factors: Calibration) -> list[Part]:
    """Return a part for each stage of the pipeline, named "run/<stage>", over all sources."""
    statuses = [read_status(directory) for directory in found["steps"].values()]
    text, parts = None, []
    for line in found["stages"]:
        # A stage that writes no text, such as dedup, gets the size of the text that was last written before it.
        text = line["text_bytes"] or text
        of_stage = [one for one in statuses if urls.name(one.directory).rpartition("-")[0] == line["stage"]]
        parts.append(_part(line["stage"], line["seconds"], of_stage, text, factors))
    return parts


def _part(stage: str, seconds: float, steps: list[StepStatus], text: int | None, factors: Calibration) -> Part:
    attempts = sum(task.attempts - 1 for step in steps for task in step.tasks if task.attempts > 1)
    resident = max((phase.peak_resident for step in steps for phase in step.phases), default=0)
    cpu = sum(step.cpu_seconds for step in steps)
    phases = [phase for step in steps for phase in step.phases if phase.budget]
    closest = max(phases, key=lambda phase: phase.peak_memory / phase.budget, default=None)
    budget, peak = (closest.budget, closest.peak_memory) if closest else (0, 0)
    return Part(f"run/{stage}", seconds, cpu, resident, factors, attempts, text, requested=budget, task_peak=peak)


def bytes_written(found: Mapping[str, Any]) -> int:
    """Return the size of the outputs of all steps, without that of sources that are read in place."""
    manifests = [read_manifest(directory) for directory in found["steps"].values()]
    copied = [one for one in manifests if one.stage != "download" or "download/bytes" in one.counters]
    return sum(one.totals.bytes + sum(file.bytes for file in one.files) for one in copied)


def observed(requests: Sequence[Request], parts: Sequence[Part], written: int) -> list[Observed]:
    """Return what a ferry requests, each with the peak of this run."""
    busy = max((part.cpu_seconds / part.wall_seconds for part in parts if part.wall_seconds), default=0.0)
    peaks = {
        "bytes written": float(written),
        "CPUs": busy,
        "memory of a task": float(max((part.task_peak for part in parts), default=0)),
        "memory of a process": float(max((part.peak_rss for part in parts), default=0)),
    }
    return [
        Observed(one.what, one.amount, one.sizes, peaks[one.peak], "CPUs" if one.peak == "CPUs" else "bytes")
        for one in requests
    ]
