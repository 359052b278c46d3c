"""What a run on a cluster shows to those who look on from outside: Prometheus, and Ray's own list of tasks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None or importlib.util.find_spec("aiohttp_cors") is None:
    pytest.skip("ray[default] is not installed", allow_module_level=True)

from prometheus_client.parser import text_string_to_metric_families

from datakit.storage import urls
from tests.support.faults.cluster import wait_until
from tests.support.faults.ray_head import RayHead, free_port, ray_head
from tests.support.small_shelf import command, make_shelf

pytestmark = pytest.mark.ray

LIST = """
import sys
from ray.util.state import list_tasks
print(*sorted({task.name for task in list_tasks(address=sys.argv[1], limit=10000)}), sep="\\n")
"""


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """(name, *LABELS) -> value, of all that is ours."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name.removeprefix("ray_datakit_"), *(sample.labels.get(name, "") for name in LABELS)): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("ray_datakit_")
    }


LABELS = ("dataset", "stage", "phase", "cause", "le")


def names_of_tasks(head: RayHead, dashboard: int) -> list[str]:
    """What `ray list tasks` lists."""
    run = [sys.executable, "-c", LIST, f"http://127.0.0.1:{dashboard}"]
    environment = os.environ | head.environment
    return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_run_can_be_watched_from_outside(tmp_path: Path) -> None:
    recipe, metrics, dashboard = make_shelf(tmp_path / "shelf"), free_port(), free_port()
    ports = ("--metrics-export-port", str(metrics), "--dashboard-port", str(dashboard), "--dashboard-host", "127.0.0.1")
    with ray_head("--num-cpus", "2", *ports, dashboard=True) as head:
        ran = command(
            "run", recipe, "--root", tmp_path / "root", "--ray", head.address, cwd=tmp_path, **head.environment
        )
        assert ran.returncode == 0, ran.stderr
        address = f"http://{head.address.split(':')[0]}:{metrics}"
        assert wait_until(lambda: any(key[0] == "tasks_done_total" for key in scraped(address)), 30)
        found = scraped(address)
        names = names_of_tasks(head, dashboard)

    def total(name: str, **labels: str) -> float:
        wanted = {LABELS.index(label) + 1: value for label, value in labels.items()}
        return sum(v for key, v in found.items() if key[0] == name and all(key[i] == w for i, w in wanted.items()))

    assert total("tasks_done_total") == total("attempts_total", cause="done") == total("attempt_seconds_count") > 10
    assert total("attempts_total") == total("attempts_total", cause="done")
    assert total("attempt_peak_bytes_count") == total("attempts_total")
    assert total("records_total", stage="normalize", phase="route") == 150
    assert total("records_total", stage="normalize", phase="route", dataset="novels") == 100
    assert total("bytes_read_total", stage="normalize") > 0
    written = total("bytes_written_total", stage="tokenize")
    assert 0 < written <= sum(info.size for info in urls.listing(str(tmp_path / "root")))
    assert {key[2] for key in found} >= {"normalize", "signatures", "dedup", "consolidate", "tokenize"}

    assert "probe" in names
    attempts = [name for name in names if name != "probe"]
    assert {name.split()[0] for name in attempts} >= {"normalize", "dedup", "tokenize"}, names
    phases = {f"{key[2]} {key[3]}" for key in found if key[0] == "attempts_total"}
    assert set(attempts) == phases, "a name for each phase, and none for a task"
