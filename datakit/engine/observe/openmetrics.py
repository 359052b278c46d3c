"""Publishes a run's metrics without Ray: in a text file, and on a port of this machine, both in OpenMetrics format.

The file is replaced atomically every 10 seconds while tasks run, whenever a step ends, and at the end of the run. The
textfile collector of Prometheus's node_exporter can read the file; it ignores the lines specific to OpenMetrics. The
port is bound to 127.0.0.1, so other machines cannot reach it. The library `prometheus_client`, which writes the format
and serves the port, is needed only if a file or a port is requested.

When a run ends, the gauges are removed from the file, and the counters stay. If a run is killed, the gauges stay as
well, so an alert on `datakit_last_done_time` reports a killed run, but not one that ended in another way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from datakit import messages
from datakit.engine.observe.metrics import METRICS, Kind, Metric, RunMetrics
from datakit.engine.observe.observer import Observer
from datakit.engine.task import Phase, Step
from datakit.errors import DatakitError, UsageError
from datakit.storage import atomic, urls
from datakit.storage.manifest import Manifest
from datakit.storage.stale_files import remove_dead_files_in

ADDRESS = "127.0.0.1"
FILE_SECONDS = 10.0  # the file is written this often while a step runs, and whenever a step ends


@contextmanager
def published(path: str | None, port: int | None) -> Iterator[Observer]:
    """Publish a run's metrics in the file at `path` and on `port` while the block runs, and yield the observer to which
    the run must report. If `path` and `port` are both None, the observer ignores all events. Port 0 stands for any free
    port. Raises UsageError.
    """
    if path is None and port is None:
        yield Observer()
        return
    registry = OpenMetrics()
    with ExitStack() as stack:
        if port is not None:
            stack.enter_context(registry.served(port))
        if path is None:
            yield RunMetrics(lambda: registry)
            return
        file = MetricsFile(registry, path)
        try:
            yield file
        finally:
            registry.remove_gauges()
            file.write_or_warn()


class OpenMetrics:
    """Holds the values of all metrics, and writes or serves them as OpenMetrics text."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, disable_created_metrics
        except ModuleNotFoundError as error:
            advice = "run pip install '.[metrics]' in datakit's checkout"
            raise UsageError(f"--metrics-file and --metrics-port need prometheus_client; {advice}") from error
        disable_created_metrics()  # leaves out the times at which the series began, which are of no use
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {metric.name: _create(metric, self._registry) for metric in METRICS}

    def update(self, metric: Metric, value: float, labels: dict[str, str]) -> None:
        created = self._metrics[metric.name].labels(**labels)
        if metric.kind is Kind.COUNTER:
            created.inc(value)
        elif metric.kind is Kind.GAUGE:
            created.set(value)
        else:
            created.observe(value)

    def remove_gauges(self) -> None:
        """Remove the values of all gauges."""
        for metric in METRICS:
            if metric.kind is Kind.GAUGE:
                self._metrics[metric.name].clear()

    def text(self) -> bytes:
        """Return all values as OpenMetrics text."""
        from prometheus_client.openmetrics.exposition import generate_latest

        return generate_latest(self._registry)

    @contextmanager
    def served(self, port: int) -> Iterator[None]:
        """Serve the metrics on a port of this machine while the block runs."""
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, ADDRESS, self._registry)
        except (OSError, OverflowError) as error:
            raise UsageError(f"--metrics-port {port}: {error}; choose another port (0: any free port)") from error
        place = f"http://{ADDRESS}:{server.server_port}/metrics"
        messages.show(f"metrics: {place}", event="metrics", url=place)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class MetricsFile(RunMetrics):
    """Writes the metrics of a run to a local file."""

    def __init__(self, registry: OpenMetrics, path: str) -> None:
        """Write the first version of the file."""
        super().__init__(lambda: registry)
        url = urls.absolute(path)
        if not urls.is_local(url):
            raise UsageError(f"--metrics-file {path}: the file must be on this machine; give a path, not a URL")
        self.path: str = urls.local_path(url)
        self._text, self._written = registry.text, 0.0
        try:
            self._write()
            remove_dead_files_in(os.path.dirname(self.path))  # temporary files of runs that were killed while writing
        except (OSError, DatakitError) as error:
            raise UsageError(f"--metrics-file {path}: {error}") from error

    def _write(self) -> None:
        # The temporary file's name ends with .new because node_exporter reads every file whose name ends with .prom.
        with atomic.staging(f"{self.path}.new") as path:
            path.write_bytes(self._text())
            os.replace(path, self.path)
        self._written = time.monotonic()

    def write_or_warn(self) -> None:
        """Replace the file, or report why that is impossible: a run goes on without its metrics."""
        try:
            self._write()
        except (OSError, DatakitError) as error:
            self._written = time.monotonic()
            messages.show(f"warning: the metrics cannot be written: {error}", event="metrics")

    def phase_started(self, step: Step, phase: Phase, done: int, slots: int) -> None:
        super().phase_started(step, phase, done, slots)
        self._write_if_due()

    def tick(self) -> None:
        super().tick()
        self._write_if_due()

    def step_ended(self, step: Step, manifest: Manifest, reused: bool) -> None:
        super().step_ended(step, manifest, reused)
        if not reused:
            self.write_or_warn()

    def _write_if_due(self) -> None:
        if time.monotonic() - self._written >= FILE_SECONDS:
            self.write_or_warn()


def _create(metric: Metric, registry: Any) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    if metric.kind is Kind.HISTOGRAM:
        return Histogram(metric.name, metric.text, metric.labels, buckets=metric.buckets, registry=registry)
    return {Kind.COUNTER: Counter, Kind.GAUGE: Gauge}[metric.kind](
        metric.name, metric.text, metric.labels, registry=registry
    )
