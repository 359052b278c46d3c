"""Publishes a run's metrics (`engine/observe/metrics.py`) through the Prometheus endpoints of Ray's nodes.

Ray adds the prefix `ray_` to all names. It sends metrics every 10 seconds and once more when the driver exits, so even
the counts of a short run arrive. Gauges disappear when the driver exits. Without `ray[default]` on the driver's node,
Ray drops the metrics. The import of Ray adds no cost, because a run on Ray imports it anyway.
"""

from __future__ import annotations

from typing import Any

from datakit.engine.observe.metrics import METRICS, Kind, Metric, RunMetrics


class RayMetrics(RunMetrics):
    """Publishes the metrics of a run through Ray."""

    def __init__(self) -> None:
        super().__init__(RayRegistry)


class RayRegistry:
    """Passes the values of all metrics to Ray."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {metric.name: _create(metric) for metric in METRICS}

    def update(self, metric: Metric, value: float, labels: dict[str, str]) -> None:
        created = self._metrics[metric.name]
        if metric.kind is Kind.COUNTER:
            created.inc(value, labels)
        elif metric.kind is Kind.GAUGE:
            created.set(value, labels)
        else:
            created.observe(value, labels)


def _create(metric: Metric) -> Any:
    from ray.util.metrics import Counter, Gauge, Histogram

    if metric.kind is Kind.HISTOGRAM:
        return Histogram(metric.name, metric.text, list(metric.buckets), metric.labels)
    return {Kind.COUNTER: Counter, Kind.GAUGE: Gauge}[metric.kind](metric.name, metric.text, metric.labels)
