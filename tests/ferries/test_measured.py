"""The CPU time and memory of all descendants are counted, and none survives the ferry."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from datakit.ferries import measured
from datakit.ferries.child import STOP_SECONDS, run_program

MIB = 1 << 20
BURN = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass\n"
FORK = f"import os, time\nif os.fork():\n    {{parent}}\nelse:\n    time.sleep(0.5)\n    exec({BURN!r})\n"


def python(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


def test_cpu_time_of_waited_for_and_orphaned_children_counts(tmp_path: Path) -> None:
    for name, parent in (("waited", "os.wait()"), ("orphaned", "os._exit(0)")):
        usage = run_program(python(FORK.format(parent=parent)), tmp_path / name)
        assert usage.code == 0 and usage.cpu_seconds >= 1, name
        assert usage.left_behind == 0


def test_memory_is_that_of_the_largest_process(tmp_path: Path) -> None:
    usage = run_program(python(f"import os; held = b'x' * {200 * MIB} if os.fork() else 0; os.wait() if held else 0"),
                        tmp_path / "large")  # fmt: skip
    assert 200 * MIB < usage.peak_rss < 260 * MIB


def test_exit_codes_signals_and_output_are_kept(tmp_path: Path) -> None:
    usage = run_program(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), tmp_path / "a")
    assert usage.code == 3
    assert ((tmp_path / "a.out").read_text(), (tmp_path / "a.log").read_text()) == ("out\n", "err\n")
    assert run_program(python("import os; os.kill(os.getpid(), 9)"), tmp_path / "b").code == 137


def test_command_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(measured.__file__).read_text()
    (tmp_path / "measured.py").write_text(
        program.replace(f"KILL_SECONDS = {measured.KILL_SECONDS}", "KILL_SECONDS = 0.5")
    )
    monkeypatch.setattr(measured, "__file__", str(tmp_path / "measured.py"))
    assert measured.KILL_SECONDS + measured.ORPHANS_SECONDS < STOP_SECONDS
    deaf = "import signal, sys, time\nsignal.signal(15, signal.SIG_IGN)\nopen(sys.argv[1], 'w')\ntime.sleep(30)"
    mark = tmp_path / "ready"
    assert run_program([*python(deaf), str(mark)], tmp_path / "d", mark.exists).code == 137


def test_stop_sends_sigterm_once(tmp_path: Path) -> None:
    asleep = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(5))\nopen(sys.argv[1], 'w')\ntime.sleep(600)"
    )
    mark = tmp_path / "ready"
    usage = run_program([*python(asleep), str(mark)], tmp_path / "c", mark.exists)
    assert usage.code == 5
