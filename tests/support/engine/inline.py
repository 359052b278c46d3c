"""Runs a stage's plan in this process, for the tests of single stages.

There is no fork, no retry and no ledger, and a debugger stops at the error. The real driver is in
`engine/scheduler/driver.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from datakit.engine.quarantine import require_allowed
from datakit.engine.scheduler.finish import Tally, finish_step
from datakit.engine.task import Output, Phase, Plan, Step, Task, TaskContext, TaskResult, decode, encode, resolve
from datakit.storage.manifest import Manifest


def run_task_inline(
    task: Task, phase: Phase, step_directory: str, skip: Mapping[tuple[str, int], str] = MappingProxyType({})
) -> TaskResult:
    """Run one task; arguments and result pass through msgpack, as with a child. skip: as in `TaskContext`."""
    scratch = Path(tempfile.mkdtemp(prefix="datakit-"))
    context = TaskContext(step_directory, scratch, phase.cpus, skip=skip, tolerance=phase.tolerance)
    try:
        arguments, shared = decode(encode(task.all_arguments())), decode(encode(phase.shared))
        result = resolve(task.function)(arguments, shared, context)
        return decode(encode(result), TaskResult)
    finally:
        shutil.rmtree(scratch)


def run_plan_inline(plan: Plan, step_directory: str) -> tuple[Output, list[TaskResult]]:
    """Run a whole plan; return its output and every task's result, in order."""
    everything: list[TaskResult] = []
    try:
        phase = next(plan)
        while True:
            results = [run_task_inline(task, phase, step_directory) for task in phase.tasks]
            require_allowed(phase.tolerance, results)
            everything += results
            phase = plan.send(results)
    except StopIteration as stop:
        return stop.value, everything


def finish_inline(step: Step, output: Output, results: Sequence[TaskResult]) -> Manifest:
    """Write the manifest of a plan that was run inline."""
    tally = Tally()
    tally.add(results)
    return finish_step(step, output, tally)
