"""A run on a cluster can be observed from outside: in Prometheus metrics, and in Ray's list of tasks."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from datakit.storage import urls
from tests.support.command_line import command
from tests.support.faults.cluster import SharedCluster, free_port, ray_cluster, wait_until
from tests.support.small_shelf import make_shelf

LABELS = ("dataset", "stage", "phase", "cause", "le")
DRIVER = """
import json, sys
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.ray_backend.metrics import RayMetrics
from datakit.engine.scheduler.driver import run_step
from tests.support.engine import engine_tasks

executor = RayExecutor(sys.argv[1], sys.argv[2])
plan = engine_tasks.numbers(4, {1: "raise"}, sys.argv[2])
run_step(engine_tasks.number_step(sys.argv[2] + "/step"), plan, lambda: executor, RayMetrics())
executor.close()
print(json.dumps({"done": True}))
"""
LIST_TASKS = """
import json, sys
from ray.util.state import list_tasks
tasks = list_tasks(address=f"http://127.0.0.1:{sys.argv[2]}", limit=10000)
print(json.dumps({"names": sorted({task.name for task in tasks})}))
"""


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """Return our metrics: (name, *LABELS) -> value."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url, timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name.removeprefix("ray_datakit_"), *(sample.labels.get(name, "") for name in LABELS)): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("ray_datakit_")
    }


def total_of(metrics: dict[tuple[str, ...], float], name: str, **labels: str) -> float:
    """Return the sum of a metric over all labels that are not given."""
    wanted = {LABELS.index(label) + 1: value for label, value in labels.items()}
    return sum(v for key, v in metrics.items() if key[0] == name and all(key[i] == w for i, w in wanted.items()))


def test_even_short_runs_publish_their_metrics(shared_cluster: SharedCluster, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp_cors", reason="ray[default] is not installed")
    cluster = shared_cluster.cluster
    cluster.drive(DRIVER, str(tmp_path))
    address = f"http://{cluster.address.split(':')[0]}:{shared_cluster.metrics}"

    def total(name: str, **labels: str) -> float:  # other tests use the same cluster
        return total_of(scrape(address), name, dataset="test", **labels)

    assert wait_until(lambda: total("tasks_done_total") == 8, 90), scrape(address)
    assert total("tasks_done_total", stage="numbers", phase="first") == 4
    assert (total("attempts_total"), total("attempts_total", cause="error")) == (9, 1)
    assert total("attempt_seconds_count") == total("attempt_peak_bytes_count") == 9
    assert total("bytes_written_total") == sum(path.stat().st_size for path in tmp_path.glob("step/number-*"))


@pytest.mark.soak
def test_runs_can_be_observed_on_the_dashboard(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp_cors", reason="ray[default] is not installed")
    recipe, metrics, dashboard = make_shelf(tmp_path / "shelf"), free_port(), free_port()
    ports = ("--metrics-export-port", str(metrics), "--dashboard-port", str(dashboard), "--dashboard-host", "127.0.0.1")
    with ray_cluster("--num-cpus", "2", *ports, dashboard=True) as cluster:
        arguments = ("run", recipe, "--root", tmp_path / "root", "--ray", cluster.address)
        ran = command(*arguments, cwd=tmp_path, **cluster.environment)
        assert ran.returncode == 0, ran.stderr
        address = f"http://{cluster.address.split(':')[0]}:{metrics}"
        assert wait_until(lambda: any(key[0] == "tasks_done_total" for key in scrape(address)), 90)
        found = scrape(address)
        listed = cluster.drive(LIST_TASKS, str(dashboard))["names"]

    def total(name: str, **labels: str) -> float:
        return total_of(found, name, **labels)

    assert total("tasks_done_total") == total("attempts_total", cause="done") == total("attempt_seconds_count") > 10
    assert total("attempts_total") == total("attempts_total", cause="done")
    assert total("attempt_peak_bytes_count") == total("attempts_total")
    assert total("records_total", stage="normalize", phase="route") == 150
    assert total("records_total", stage="normalize", phase="route", dataset="novels") == 100
    assert total("bytes_read_total", stage="normalize") > 0
    written = total("bytes_written_total", stage="tokenize")
    assert 0 < written <= sum(info.size for info in urls.listing(str(tmp_path / "root")))
    assert {key[2] for key in found} >= {"normalize", "signatures", "dedup", "select", "consolidate", "tokenize"}

    assert "probe" in listed
    attempts = [name for name in listed if name != "probe"]
    assert {name.split()[0] for name in attempts} >= {"normalize", "dedup", "tokenize"}, listed
    phases = {f"{key[2]} {key[3]}" for key in found if key[0] == "attempts_total"}
    assert set(attempts) == phases, "a name per phase, not per task"
