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
        if self._made is None:
            self._made = LocalExecutor(self.workers) if self.ray is None else self._on_ray(self.ray)
        return self._made

    def close(self) -> None:
        """Close the executor if one was made."""
        if self._made is not None:
            self._made.close()

    def _on_ray(self, address: str) -> Executor:
        from datakit.engine.ray_backend.executor import RayExecutor  # optional, and takes a second to import

        return RayExecutor(address, self.root, self.workers)
