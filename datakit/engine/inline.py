"""Runs a stage's plan in this process: for debugging, and for the tests of one stage.

`isolation = "inline"`: no fork, no retries, no ledger; a debugger stops where the error is. The driver proper is in
`engine/scheduler/driver.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from datakit.engine.quarantine import require_allowed
from datakit.engine.task import Output, Phase, Plan, Task, TaskContext, TaskResult, decode, encode, resolve


def run_task_inline(task: Task, phase: Phase, step_directory: str) -> TaskResult:
    """One task, here and now; arguments and result make the same msgpack trip as in a child."""
    scratch = Path(tempfile.mkdtemp(prefix="datakit-"))
    context = TaskContext(step_directory, scratch, phase.cpus, tolerance=phase.tolerance)
    try:
        arguments, shared = decode(encode(task.arguments)), decode(encode(phase.shared))
        result = resolve(task.function)(arguments, shared, context)
        return decode(encode(result), TaskResult)
    finally:
        shutil.rmtree(scratch)


def run_plan_inline(plan: Plan, step_directory: str) -> tuple[Output, list[TaskResult]]:
    """A whole plan, here and now; also returns every task's result, in order."""
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
