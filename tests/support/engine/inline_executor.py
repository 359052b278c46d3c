"""Runs attempts in this process, so that a whole run can be tested with patched constants."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from datakit.engine.executor import Attempt, BatchedResult, Cause, Outcome
from datakit.engine.task import Preload, Task, TaskContext, TaskResult, decode, encode, resolve
from datakit.engine.worker.child import describe_error
from datakit.storage import urls


class InlineExecutor:
    """An executor without processes: no fork, no memory limit, no hang."""

    slots = 1
    compiling = False

    def __init__(self, workers: int | None = None) -> None:
        self._ended: list[Outcome] = []

    def prepare(self, preloads: tuple[Preload, ...]) -> None:
        pass

    def submit(self, attempt: Attempt) -> None:
        try:
            results = [_result(task, attempt) for task in (attempt.task, *attempt.more)]
        except Exception as error:  # noqa: BLE001 - reported as a child reports it
            said = describe_error(error)
            cause, message, kind = Cause(said["cause"]), said["message"], said["error"]
            self._ended.append(Outcome.of(attempt, cause, message=message, error_type=kind))
            return
        more = tuple(BatchedResult(task.key, done, 0.1) for task, done in zip(attempt.more, results[1:], strict=True))
        self._ended.append(Outcome.of(attempt, Cause.DONE, result=results[0], work_seconds=0.1, more=more))

    def wait(self, timeout: float) -> list[Outcome]:
        ended, self._ended = self._ended, []
        return ended

    def written(self, step_directory: str) -> int:
        return 0

    def cancel(self, *step_directories: str) -> None:
        self._ended = [outcome for outcome in self._ended if outcome.step_directory not in step_directories]

    def close(self) -> None:
        pass


def _result(task: Task, attempt: Attempt) -> TaskResult:
    shared = urls.read_bytes(urls.join(attempt.step_directory, attempt.shared)) if attempt.shared else encode({})
    scratch = Path(tempfile.mkdtemp(prefix="datakit-"))
    context = TaskContext(attempt.step_directory, scratch, attempt.cpus, tolerance=attempt.tolerance)
    try:
        return decode(
            encode(resolve(task.function)(decode(encode(task.all_arguments())), decode(shared), context)), TaskResult
        )
    finally:
        shutil.rmtree(scratch)
