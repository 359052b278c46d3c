"""Makes a run's executor when the first task must run, so a run that finds every step done starts no worker."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.engine.executor import Executor
from datakit.engine.worker.local_executor import LocalExecutor


@dataclass
class LazyExecutor:
    """This machine's processes, or the Ray cluster at address `ray`, whose nodes share the root `root`."""

    workers: int | None
    ray: str | None
    root: str
    _made: Executor | None = None

    def get(self) -> Executor:
        """The executor, made by the first call."""
        if self._made is not None:
            return self._made
        if self.ray is None:
            self._made = LocalExecutor(self.workers)
        else:
            from datakit.engine.ray_backend.executor import RayExecutor  # optional, and takes a second to import

            self._made = RayExecutor(self.ray, self.root, self.workers)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
