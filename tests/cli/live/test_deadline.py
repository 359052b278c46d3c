"""`datakit run --timeout` stops a run as SIGTERM does, with an exit code of its own; the next run continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from datakit.cli.live.deadline import deadline
from datakit.exit_codes import ExitCode
from tests.support.command_line import command, invoke
from tests.support.paths import REPOSITORY
from tests.support.small_shelf import TRANSFORM, write_pages


def test_run_that_times_out_continues_where_it_stopped(tmp_path: Path) -> None:
    """The first source is finished within the limit; the second would take 600 s."""
    recipe = write_pages(tmp_path, "slow")
    text = recipe.read_text()
    pages, good = text.split("[[sources]]")[1:]
    recipe.write_text(f'name = "pages"\n[[sources]]{good}[[sources]]{pages}')
    (tmp_path / "tmp").mkdir()
    environment = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}", "TMPDIR": str(tmp_path / "tmp")}
    words = ("run", recipe, "--root", "root", "--timeout")
    limit, stopped = 8, None
    while stopped is None or not list(tmp_path.glob("root/sources/good/normalize-*/manifest.json")):
        stopped = command(*words, f"{limit}s", cwd=tmp_path, **environment)  # a busy machine needs more than 8 s
        assert stopped.returncode == ExitCode.TIMED_OUT, stopped.stderr
        limit *= 2
    assert stopped.stderr.splitlines()[-1].startswith("timed out; finished work is kept")
    assert "run the same command again to continue" in stopped.stderr and "Traceback" not in stopped.stderr
    assert os.listdir(tmp_path / "tmp") == []
    assert not [path for path in (tmp_path / "root").rglob("*") if path.name.startswith(".tmp-")]
    (tmp_path / "transforms.py").write_text(TRANSFORM.replace("time.sleep(600)", "pass"))
    done = command(*words, "1h", "--json", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "normalize good: running" not in done.stderr and json.loads(done.stdout)["stages"]


@pytest.mark.parametrize(
    ("given", "message"), [("0s", "longer than 0 s"), ("-1h", "longer than 0 s"), ("soon", "soon")]
)
def test_useless_limits_are_refused(tmp_path: Path, given: str, message: str) -> None:
    refused = invoke("run", "demo", f"--timeout={given}", cwd=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr and not (tmp_path / "data").exists()


def test_time_limit_ends_with_the_block() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(SystemExit) as ended, deadline(timedelta(milliseconds=1)):
        while True:
            time.sleep(1)
    assert ended.value.code == ExitCode.TIMED_OUT
    with deadline(timedelta(hours=1)):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 3000
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_child_processes_do_not_inherit_the_time_limit() -> None:
    script = "import signal; print(signal.getitimer(signal.ITIMER_REAL))"
    with deadline(timedelta(hours=1)):
        shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout == "(0.0, 0.0)\n"
