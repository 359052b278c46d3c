"""Records a trace of the steps that `log.profile` names, for `datakit train profile`, xprof or Perfetto."""

from __future__ import annotations

import jax

from datakit.storage import urls

FOLDER = "profile"


class Tracing:
    """Starts and stops the trace. steps: (first, end), counted from 0; None: no trace is recorded."""

    def __init__(self, directory: str, steps: tuple[int, int] | None) -> None:
        self._place, self._steps, self._running = urls.join(directory, FOLDER), steps or (None, None), False

    def at(self, step: int) -> None:
        """Start or stop the trace if `step`, counted from 0, is its start or end."""
        if step == self._steps[0]:
            jax.profiler.start_trace(self._place)
            self._running = True
        elif step == self._steps[1]:
            self.stop()

    def boundary(self, step: int) -> bool:
        """Return True if the trace starts or ends before `step`, so that no earlier step should be in flight."""
        return step in self._steps

    def stop(self) -> None:
        """Stop the trace if it is running."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
