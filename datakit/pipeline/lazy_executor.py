"""Creates a run's executor when the first task must run, so a run whose steps are all done starts no worker."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.engine.executor import Executor
from datakit.engine.worker.local_executor import LocalExecutor


@dataclass
class LazyExecutor:
    """An executor for this machine's processes, or for the Ray cluster at `ray`, whose nodes share the root `root`."""

    workers: int | None
    ray: str | None
    root: str
    _made: Executor | None = None

    def get(self) -> Executor:
        """Return the executor, created by the first call."""
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
