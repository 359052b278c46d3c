"""Chooses a run's executor (local or Ray) and creates it for the first task; a run without tasks starts no worker."""

from __future__ import annotations

from dataclasses import dataclass

from datakit.engine.executor import Executor
from datakit.engine.worker.local_executor import LocalExecutor


@dataclass
class LazyExecutor:
    """Creates an executor when it is first needed: a local one or, if `ray` is given, one for a Ray cluster whose nodes
    share `root`.
    """

    workers: int | None
    ray: str | None
    root: str
    _made: Executor | None = None

    def get(self) -> Executor:
        """Return the executor. The first call creates it."""
        if self._made is None and self.ray is not None:
            from datakit.engine.ray_backend.executor import RayExecutor  # Ray is optional and slow to import

            self._made = RayExecutor(self.ray, self.root, self.workers)
        self._made = self._made or LocalExecutor(self.workers)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
