"""`datakit status --watch` follows the runs of other processes until they end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datakit.cli.live import watch
from datakit.cli.live.watch import ActiveRuns, WatchedRun
from datakit.engine.ledger.ledger import driver_name
from datakit.engine.observe.event_reader import RunEvents
from datakit.engine.observe.liveness import process_runs
from datakit.engine.observe.step_views import StepView
from datakit.pipeline.root_layout import run_directory
from tests.support.command_line import invoke
from tests.support.faults.cluster import wait_until
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import TRANSFORM, write_pages

WAITING = TRANSFORM.replace("time.sleep(600)", "\n    while not os.path.exists('go'): time.sleep(0.05)\n")


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run that waits in its first task for the file `go`; provide it once it has begun that phase."""
    recipe = write_pages(folder, "slow")
    (folder / "transforms.py").write_text(WAITING.replace("'go'", repr(str(folder / "go"))))
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}"}
    words = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", "root"]
    run = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        logs = folder / "root" / "pages" / "runs"
        assert wait_until(lambda: any('"route"' in path.read_text() for path in logs.glob("*/events.jsonl")), 120)
        yield run
    finally:
        run.kill()
        run.wait(60)


def watching(folder: Path, directory: str, output: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "datakit", "status", directory, "--watch"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=subprocess.PIPE)


def test_lines_follow_a_run_of_another_process_to_its_end(tmp_path: Path) -> None:
    with running(tmp_path) as run, (tmp_path / "shown").open("wb") as output:
        watcher = watching(tmp_path, "root", output.fileno())
        shown = tmp_path / "shown"
        assert wait_until(lambda: "normalize pages: route" in shown.read_text(), 120)
        (tmp_path / "go").touch()
        assert run.wait(120) == 0
        _, errors = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, errors
    lines = shown.read_text().splitlines()
    ended = [line.partition(" after ")[0] for line in lines if " after " in line]
    assert sorted(ended[:-2]) == [  # sources run at the same time
        "download good: done", "download pages: done", "normalize good: done", "normalize pages: done",
    ]  # fmt: skip
    assert ended[-2:] == ["select pages: done", "consolidate pages: done"]
    assert max(map(len, lines)) <= 80 and "\x1b" not in shown.read_text()
    assert errors.decode().startswith("pages: run ")


def test_table_on_a_terminal_fits_into_80_columns(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with running(tmp_path) as run:
        watcher = watching(tmp_path, "root/pages", theirs)
        os.close(theirs)
        (tmp_path / "go").touch()
        shown = b""
        while part := _read(ours):
            shown += part
        assert run.wait(120) == 0
    _, errors = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, errors
    lines = re.sub(r"(\x1b\[[0-9;?]*[a-zA-Z]|\r)+", "\n", shown.decode()).split("\n")
    lines = [line for line in lines if line]
    assert max(map(len, lines)) <= 80
    assert shown.count(b"\x1b[2K") > 1, "the table is drawn again"
    last = lines[-6:]
    assert sorted(line.split()[:3] for line in last) == [
        [stage, name, "done"] for stage, name in [
            ("consolidate", "pages"), ("download", "good"), ("download", "pages"), ("normalize", "good"),
            ("normalize", "pages"), ("select", "pages"),
        ]
    ]  # fmt: skip


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_watch_ends_when_the_run_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as run:
        watcher = watching(tmp_path, "root", subprocess.DEVNULL)
        run.send_signal(number)
        run.wait(120)
        _, errors = watcher.communicate(timeout=120)
    assert watcher.returncode == 0, errors
    assert re.search(r"pages: run \S+: |no run is active in root", errors.decode())


def test_ctrl_c_leaves_the_display_without_a_message(tmp_path: Path) -> None:
    with running(tmp_path), (tmp_path / "shown").open("wb") as output:
        watcher = watching(tmp_path, "root", output.fileno())
        assert wait_until(lambda: "normalize pages: route" in (tmp_path / "shown").read_text(), 120)
        watcher.send_signal(signal.SIGINT)
        _, errors = watcher.communicate(timeout=120)
        assert (watcher.returncode, errors) == (0, b"")


def test_without_an_active_run_the_usual_status_is_shown(finished: Path) -> None:
    shown = invoke("status", "root", "--watch", cwd=finished)
    assert shown.stdout == invoke("status", "root", cwd=finished).stdout
    assert shown.stderr.startswith("no run is active in root\n")


@pytest.mark.parametrize("option", ["--json", "--all"])
def test_watch_refuses_options_that_it_ignores(tmp_path: Path, option: str) -> None:
    refused = invoke("status", "root", "--watch", option, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "") and "--watch cannot be combined" in refused.stderr


def live_run() -> str:
    """Return a name for a run of a process that is alive: our parent."""
    return driver_name().replace(f"-{os.getpid()}-", f"-{os.getppid()}-")


def write_log(root: Path, run: str, *events: dict[str, Any]) -> Path:
    """Write the log of a run of the dataset `shelf`."""
    path = Path(run_directory(str(root), "shelf", run)) / "events.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps({'time': time.time()} | event)}\n" for event in events))
    return path


def test_run_on_another_machine_ends_with_its_heartbeats(tmp_path: Path) -> None:
    started = {"event": "run_started", "host": "elsewhere", "heartbeat_seconds": 30.0}
    alive = WatchedRun(RunEvents(str(write_log(tmp_path, "20260101T000000000Z-1-a", started))))
    alive.look()
    assert alive.active()
    alive.seen -= 3 * 30.0
    assert not alive.active() and "without recording how" in alive.ending()
    late = started | {"time": time.time() - 3600}
    dead = WatchedRun(RunEvents(str(write_log(tmp_path, "20260101T000000000Z-1-b", late))))
    dead.look()
    assert not dead.active()


def test_end_of_a_run_tells_the_reason_and_the_code(tmp_path: Path) -> None:
    end = {"event": "run_ended", "exit_code": 3, "reason": "1 of 2 tasks failed"}
    run = WatchedRun(RunEvents(str(write_log(tmp_path, live_run(), {"event": "run_started"}, end))))
    run.look()
    assert not run.active() and run.ending().endswith(": 1 of 2 tasks failed (exit code 3)")


def test_only_runs_that_may_be_active_are_read(tmp_path: Path) -> None:
    """Only the newest of the runs that have no process on this machine might still be running, on another machine."""
    for number in range(100):
        write_log(tmp_path, f"20260101T000000{number:03d}Z-999999999-a", {"event": "run_started"})
    mine = write_log(tmp_path, live_run(), {"event": "run_started"})
    for directory in (tmp_path, tmp_path / "shelf", tmp_path / "shelf" / "dedup-0123456789ab"):
        runs = ActiveRuns(str(directory))
        runs.look()
        assert [run.events.url for run in runs.found] == [str(mine)]


def test_later_process_with_the_same_number_is_not_the_run() -> None:
    assert process_runs(live_run())
    assert not process_runs(f"20200101T000000000Z-{os.getppid()}-abcdef")
    assert not process_runs("no-run") and not process_runs("")


def test_screen_shows_the_latest_steps_of_each_run() -> None:
    runs = [WatchedRun(RunEvents(f"/data/{'d' * 90}\x1b{number}/runs/r/events.jsonl")) for number in range(2)]
    for run in runs:
        run.events.views = {str(step): StepView(f"stage{step} {'s' * 90}", "phase", 9, 1) for step in range(40)}
    lines = watch.table(runs, 80, 20)
    assert len(lines) <= 20 and max(map(len, lines)) <= 80 and not any("\x1b" in line for line in lines)
    assert [line.partition(" ")[0] for line in lines if line.startswith("stage")][-1] == "stage39"


def test_unchanged_state_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    run, lines = WatchedRun(RunEvents("/data/shelf/runs/r/events.jsonl")), watch.Lines()
    view = run.events.views["a"] = StepView("dedup shelf", "join", 9, 1)
    for done in (1, 1, 2):
        view.done = done
        lines.show([run])
    view.ended = view.started + 3
    lines.show([run])
    shown = capsys.readouterr().out
    assert shown == "dedup shelf: join 1 of 9 tasks done, 0 failed\ndedup shelf: done after 3.0 s\n"
