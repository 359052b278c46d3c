"""A ferry compares itself with earlier runs, and its status is right however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from datakit.errors import UsageError
from datakit.exit_codes import ExitCode
from datakit.ferries.catalog import ferry_named
from datakit.ferries.history import FILE_NAME, read_history
from datakit.ferries.runner import Ended
from datakit.ferries.status import read_status
from tests.support.command_line import invoke
from tests.support.ferries.tiny_ferry import sail, tiny_ferry
from tests.support.paths import REPOSITORY
from tests.support.processes import ended as has_ended
from tests.support.small_shelf import write_lines

MIB = 1 << 20
SLOW = "import time\ndef changed(batch):\n    time.sleep(600)\n    return batch\n"
DRIVER = """
import sys
from pathlib import Path
from datakit.cli import main
from datakit.ferries import catalog
from tests.support.ferries.tiny_ferry import LIMITS
catalog.FERRIES = (catalog.Ferry("tiny", "", sys.argv[1], ("run",), LIMITS, "0 0 * * *", 600),)
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare no figures, so that a busy machine changes no outcome."""
    monkeypatch.setattr("datakit.ferries.regression.FIGURES", ())


def causes(ended: Ended) -> list[str]:
    return [f"{failure.stage}: {failure.cause}" for failure in ended.record.failures]


@pytest.mark.usefixtures("unmeasured")
def test_second_run_is_compared_with_the_first(tmp_path: Path) -> None:
    ferry, parent = (
        tiny_ferry(tmp_path / "texts", "warm-up", "run", "validate", "again", "compare"),
        tmp_path / "ferries",
    )
    first = sail(ferry, parent)
    assert (first.record.outcome, first.exit_code) == ("no baseline", ExitCode.FAILURE)
    second = sail(ferry, parent)
    assert (second.record.outcome, second.exit_code, causes(second)) == ("passed", ExitCode.DONE, [])
    assert (second.record.compared_with, second.record.compared_steps) == (1, 4), "and every step has the same bytes"
    assert [part.name for part in second.record.parts] == [
        "run", "run/download", "run/normalize", "run/select", "run/consolidate", "validate", "again",
    ]  # fmt: skip
    normalize = second.record.parts[2]
    assert normalize.megabytes_per_cpu_second and normalize.peak_rss > MIB
    status = read_status(second.root)
    assert status and (status.outcome, status.stage) == ("passed", "compare")
    assert json.loads(Path(status.record).read_bytes())["nonce"] == second.record.nonce


def test_other_bytes_fail_with_the_code_for_data(tmp_path: Path) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts"), tmp_path / "ferries"
    first = sail(ferry, parent)
    history = parent / FILE_NAME
    checksum = first.record.steps["normalize novels"].checksum
    history.write_text(history.read_text().replace(checksum, "0" * 32))
    second = sail(ferry, parent)
    assert (second.record.outcome, second.exit_code) == ("failed", ExitCode.INVALID)
    assert causes(second) == ["compare: normalize novels has other bytes than before"]


@pytest.mark.usefixtures("unmeasured")
def test_record_states_the_peaks_beside_the_requests(tmp_path: Path) -> None:
    ferry = replace(tiny_ferry(tmp_path / "texts", "run"), requests=ferry_named("nightly").requests)
    record = json.loads(Path(sail(ferry, tmp_path / "ferries").root, "ferry_record.json").read_bytes())
    parts, requests = {part["name"]: part for part in record["parts"]}, record["requests"]
    normalize = parts["run/normalize"]
    assert 0 < normalize["task_peak"] < normalize["requested"]
    assert [(one["what"], one["amount"], one["sizes"]) for one in requests] == [
        (one.what, one.amount, one.sizes) for one in ferry.requests
    ]
    written, cpus, task, process = (one["peak"] for one in requests)
    assert written == sum(
        path.stat().st_size
        for path in Path(tmp_path / "ferries").glob("tiny-*/**/*")
        if path.is_file() and {"data", "origins", "duplicates", "README.md"} & set(path.parts)
    )
    assert 0 < cpus < 8 and task == max(part["task_peak"] for part in parts.values())
    assert process == max(part["peak_rss"] for part in parts.values()) > task


@pytest.mark.usefixtures("unmeasured")
def test_changed_text_is_no_difference_in_bytes(tmp_path: Path) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts"), tmp_path / "ferries"
    sail(ferry, parent)
    write_lines(tmp_path / "texts" / "novels" / "b.jsonl", ["another document"])
    second = sail(ferry, parent)
    assert (second.record.outcome, second.record.compared_steps) == ("passed", 0)


def test_slowdown_and_growth_of_a_task_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts"), tmp_path / "ferries"
    sail(ferry, parent)
    monkeypatch.setenv("TEST_BURN_SECONDS", "15")
    slow = sail(ferry, parent)
    monkeypatch.setenv("TEST_BURN_SECONDS", "0")
    monkeypatch.setenv("TEST_HOLD_BYTES", str(300 * MIB))
    large = sail(ferry, parent)
    assert slow.exit_code == large.exit_code == ExitCode.FAILURE
    assert causes(slow) == [
        "performance: run takes more CPU time", "performance: run/normalize takes more CPU time",
    ]  # fmt: skip
    assert "performance: run/normalize takes more memory" in causes(large)
    assert slow.record.parts[0].name == "run" and Path(slow.root, "measured-again").is_dir()


@pytest.mark.soak
def test_twenty_runs_give_no_alarm_and_a_third_more_gives_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts", "warm-up", "run", "compare"), tmp_path / "ferries"
    runs = [sail(ferry, parent) for _ in range(21)]
    assert [causes(run) for run in runs[1:]] == [[]] * 20
    parts = {part.name: part for part in runs[-1].record.parts}
    monkeypatch.setenv("TEST_BURN_SECONDS", str(0.3 * parts["run"].cpu_seconds))
    assert "performance: run/normalize takes more CPU time" in causes(sail(ferry, parent))
    monkeypatch.setenv("TEST_BURN_SECONDS", "0")
    monkeypatch.setenv("TEST_HOLD_BYTES", str(int(0.3 * parts["run/normalize"].peak_rss)))
    assert causes(sail(ferry, parent)) == ["performance: run/normalize takes more memory"]


def test_time_limit_of_a_run_decides_when_it_counts_as_killed(tmp_path: Path) -> None:
    ferry, parent = tiny_ferry(tmp_path / "texts", "compare"), tmp_path / "ferries"
    sail(ferry, parent, timeout=50_000.0)
    sail(ferry, parent)
    lines = [json.loads(line) for line in (parent / FILE_NAME).read_text().splitlines()]
    assert [round(line["until"] - line["started"]) for line in lines if "until" in line] == [50_600, 1200]


def test_failing_command_ends_the_ferry(tmp_path: Path) -> None:
    ferry = tiny_ferry(tmp_path / "texts")
    Path(ferry.recipe).write_text("nme = 1\n")
    ended = sail(ferry, tmp_path / "ferries")
    assert causes(ended) == ["run: the command ended with exit code 2"]
    assert "did you mean 'name'" in Path(ended.log).read_text()
    status = read_status(ended.root)
    assert status and (status.outcome, status.causes) == ("failed", ["run: the command ended with exit code 2"])


def test_two_sources_of_trouble_are_refused_before_a_root_exists(tmp_path: Path) -> None:
    for name, options in (("nightly", {}), ("smoke", {"scale": 0.5}), ("skewed", {"scale": 2.0})):
        with pytest.raises(UsageError):
            sail(ferry_named(name), tmp_path / "ferries", **options)
    with pytest.raises(UsageError, match="local disk"):
        sail(ferry_named("skewed"), tmp_path, parent="s3://bucket/ferries")
    assert list(tmp_path.iterdir()) == []


def start(folder: Path, *words: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a ferry whose tasks never end, wait until one of them works, and return the process and the root."""
    ferry = tiny_ferry(folder / "texts")
    (folder / "texts" / "ferry_transforms.py").write_text(SLOW)
    command = [sys.executable, "-c", DRIVER, ferry.recipe, "ferry", "run", "tiny", "--root", str(folder / "ferries")]
    process = subprocess.Popen(
        [*command, *words], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stderr=subprocess.PIPE, text=True
    )
    while not (found := list((folder / "ferries").glob("tiny-*/sources/novels/normalize-*/ledger/*"))):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    return process, found[0].parents[4]


@pytest.mark.parametrize(
    ("number", "code", "outcome"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_stopped_ferry_says_so(tmp_path: Path, number: signal.Signals, code: int, outcome: str) -> None:
    process, root = start(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    status = read_status(str(root))
    assert status and (status.outcome, status.stage, status.ended) == ("running", "run", None)
    assert outcome not in invoke("ferry", "history", "--root", root.parent, cwd=tmp_path).stdout
    process.send_signal(number)
    assert process.wait() == code
    status = read_status(str(root))
    assert status and (status.outcome, status.stage) == (outcome, "run") and status.ended
    (record,) = read_history(str(root.parent)).records
    assert record.outcome == outcome
    assert all(map(has_ended, children)), "no process is left"


def test_timeout_is_recorded(tmp_path: Path) -> None:
    process, root = start(tmp_path, "--timeout", "20s")
    assert process.wait() == ExitCode.TIMED_OUT
    status = read_status(str(root))
    assert status and (status.outcome, status.stage) == ("timed out", "run")


def test_killed_ferry_is_recognized_and_ends_its_processes(tmp_path: Path) -> None:
    process, root = start(tmp_path, "--scheduled")
    children = psutil.Process(process.pid).children(recursive=True)
    running = json.loads(invoke("ferry", "history", "--json", "--root", root.parent, cwd=tmp_path).stdout)
    assert [line["nonce"] for line in running["running"]] and running["records"] == []
    process.kill()
    process.wait()
    shown = invoke("ferry", "history", "--root", root.parent, cwd=tmp_path).stdout
    assert "killed" in shown and "run: the ferry was killed" in shown and "0 of the last 1 runs passed" in shown
    status = read_status(str(root))
    assert status and (status.outcome, status.stage) == ("killed", "run") and status.ended
    (record,) = read_history(str(root.parent)).records
    assert (record.outcome, record.stage, record.scheduled) == ("killed", "run", True)
    while not all(map(has_ended, children)):
        time.sleep(0.05)


def test_error_of_the_ferry_itself_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("datakit.ferries.runner.STAGES", {"run": broken})
    with pytest.raises(MemoryError):
        sail(replace(tiny_ferry(tmp_path / "texts"), stages=("run",)), tmp_path / "ferries")
    (record,) = read_history(str(tmp_path / "ferries")).records
    assert record.outcome == "failed" and [one.cause for one in record.failures] == ["an error: MemoryError"]
