"""Metrics of a run without Ray: a file that both formats' parsers read, and a port that only this machine reaches."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from datakit.engine.observe import openmetrics
from datakit.engine.observe.metrics import METRICS, Kind
from datakit.engine.observe.openmetrics import OpenMetrics, published
from datakit.errors import UsageError
from datakit.storage import atomic, locks
from tests.support.command_line import invoke
from tests.support.engine.runs import run_numbers
from tests.support.faults.cluster import wait_until
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import make_shelf, write_pages

Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(text: str) -> dict[Sample, float]:
    """Return the samples that the strict parser of OpenMetrics finds, which are also those of the older format."""
    families = list(openmetrics_parser.text_string_to_metric_families(text))
    found = {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}
    older = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert {(one.name, frozenset(one.labels.items())): one.value for one in older} == found
    return found


def total(found: dict[Sample, float], name: str, **labels: str) -> float:
    return sum(value for (other, have), value in found.items() if other == name and labels.items() <= set(have))


def test_file_of_a_run_holds_its_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "run.prom"
    ran = invoke("run", make_shelf(tmp_path / "shelf"), "--root", "root", "--metrics-file", path, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = samples(path.read_text())
    assert total(found, "datakit_records_total", stage="normalize", phase="route") == 150
    assert total(found, "datakit_records_total", stage="normalize", phase="route", dataset="novels") == 100
    done = total(found, "datakit_attempts_total", cause="done")
    assert done == total(found, "datakit_attempts_total") == total(found, "datakit_tasks_done_total") > 10
    assert done == total(found, "datakit_attempt_seconds_count") == total(found, "datakit_attempt_peak_bytes_count")
    assert total(found, "datakit_bytes_written_total", stage="tokenize") > 0
    assert list(path.parent.iterdir()) == [path]


def test_labels_are_the_defined_ones(tmp_path: Path) -> None:
    with published(str(tmp_path / "x.prom"), None) as observer:
        run_numbers(tmp_path / "step", 3, observer=observer)
        found = samples(_written(observer))
    defined = {metric.name: metric for metric in METRICS}
    for name, labels in found:
        metric = defined[re.sub(r"_(total|bucket|count|sum)$", "", name)]
        assert {label for label, _ in labels} - {"le"} == set(metric.labels)
    assert {re.sub(r"_(total|bucket|count|sum)$", "", name) for name, _ in found} >= {
        metric.name for metric in METRICS if metric.kind is not Kind.COUNTER
    }


def _written(observer: object) -> str:
    assert isinstance(observer, openmetrics.MetricsFile)
    observer.write_or_warn()
    return Path(observer.path).read_text()


def test_gauges_disappear_from_the_file_when_the_run_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    with published(str(path), None) as observer:
        run_numbers(tmp_path / "step", 3, observer=observer)
        assert total(samples(_written(observer)), "datakit_last_done_time") > 1e9
    gauges = {metric.name for metric in METRICS if metric.kind is Kind.GAUGE}
    found = samples(path.read_text())
    assert total(found, "datakit_tasks_done_total") == 6
    assert not gauges & {name for name, _ in found}


def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    with published(str(path), None) as observer:
        run_numbers(tmp_path / "step", 1, observer=observer)
        with path.open() as earlier:
            _written(observer)
            text = earlier.read()
        assert os.stat(path).st_mode & 0o444 == 0o444 & ~_umask(), "the collector is another user"
    assert samples(text) and text.endswith("# EOF\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_dead_runs_leave_no_files_for_the_collector(tmp_path: Path) -> None:
    recipe = write_pages(tmp_path / "in", "slow")
    path = tmp_path / "textfile" / "x.prom"
    words = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", "root", "--metrics-file", str(path)]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path / 'in'}"}
    run = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: path.exists() and "datakit_tasks_running{" in path.read_text(), 120)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait(60)
    assert total(samples(path.read_text()), "datakit_slots") > 0, "the gauges of a killed run stay"
    dead = path.with_name(atomic.temporary_name("x.prom.new", locks.domain(str(path.parent))))
    dead.write_text("datakit_")
    assert not dead.name.endswith(".prom")
    with published(str(path), None):
        assert list(path.parent.iterdir()) == [path]


def test_port_serves_the_metrics_on_loopback_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with published(None, 0) as observer:
        run_numbers(tmp_path / "step", 2, observer=observer)
        (url,) = re.findall(r"^metrics: (\S+)$", capsys.readouterr().err, re.MULTILINE)
        port = int(url.rpartition(":")[2].partition("/")[0])
        listening = [one for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
        assert [one.laddr.ip for one in listening if one.laddr.port == port] == ["127.0.0.1"]
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        assert total(samples(text), "datakit_tasks_done_total") == 4
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


def test_run_without_the_options_opens_no_port(tmp_path: Path) -> None:
    before = {one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN}
    with published(None, None) as observer:
        run_numbers(tmp_path / "step", 1, observer=observer)
        assert {one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metrics-port", "99999"], "--metrics-port 99999: "),
        (["--metrics-file", "s3://bucket/x.prom"], "give a path, not a URL"),
        (["--metrics-file", "/proc/x.prom"], "--metrics-file /proc/x.prom: "),
    ],
)
def test_useless_places_are_refused_before_the_run(tmp_path: Path, options: list[str], message: str) -> None:
    refused = invoke("run", "demo", *options, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert message in refused.stderr and list(tmp_path.iterdir()) == []


def test_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"in use.*choose another port"), published(None, taken.getsockname()[1]):
            pass


def test_run_goes_on_if_the_file_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "x.prom"
    with published(str(path), None) as observer:
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("now a file")
        run_numbers(tmp_path / "step", 1, observer=observer)
    assert capsys.readouterr().err.count("warning: the metrics cannot be written: ") == 2


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install '.\[metrics\]'"):
        OpenMetrics()
