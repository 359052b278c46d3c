"""Chooses a run's executor (local or Ray) and creates it for the first task; a run without tasks starts no worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType

from datakit.engine.executor import Executor
from datakit.engine.task import Preload
from datakit.engine.worker.local_executor import LocalExecutor

PRELOADS = "PRELOADS"  # a stage's module has this constant if all its tasks have the same preloads


@dataclass
class LazyExecutor:
    """Creates an executor when it is first needed: a local one or, if `ray` is given, one for a Ray cluster whose nodes
    share `root`.
    """

    workers: int | None
    ray: str | None
    root: str
    _made: Executor | None = None
    _prepared: set[tuple[Preload, ...]] = field(default_factory=set)

    def get(self) -> Executor:
        """Return the executor. The first call creates it."""
        if self._made is None and self.ray is not None:
            from datakit.engine.ray_backend.executor import RayExecutor  # Ray is optional and slow to import

            self._made = RayExecutor(self.ray, self.root, self.workers)
        self._made = self._made or LocalExecutor(self.workers)
        return self._made

    def prepare(self, stages: Iterable[ModuleType]) -> None:
        """Start the fork servers for these stages in the background, because their tasks will run soon. Does nothing on
        a cluster, where it is unknown which nodes will need them.
        """
        if self.ray is not None:
            return
        for preloads in dict.fromkeys(getattr(stage, PRELOADS, ()) for stage in stages):
            if preloads and preloads not in self._prepared:
                self._prepared.add(preloads)
                self.get().prepare(preloads)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
