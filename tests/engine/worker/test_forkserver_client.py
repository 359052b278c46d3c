"""Fork servers are forked from one template process: they share its libraries, but neither harm nor outlive it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from datakit.engine.executor import BOOT_DEATH
from datakit.engine.task import Preload
from datakit.engine.worker.boot_output import BootDeathError
from datakit.engine.worker.forkserver_client import BootError, ForkServer, ForkServerPool, Template
from tests.support.engine.bad_preloads import preload
from tests.support.engine.runs import wait_until
from tests.support.paths import REPOSITORY
from tests.support.processes import ended

EXAMPLE = "tests.support.engine.compiled_example"
COMPILED = (Preload(EXAMPLE, f"{EXAMPLE}:warm", kernels=True),)
NONE: tuple[Preload, ...] = ()
KILLED_PARENT = """
import sys
from datakit.engine.worker.forkserver_client import ForkServerPool
from tests.support.engine.bad_preloads import preload
pool = ForkServerPool()
with pool.use(()), pool.use(preload("use_compute")), pool.use(preload("hang", sys.argv[1])):
    pass
"""


@pytest.fixture
def pool() -> Iterator[ForkServerPool]:
    """Servers of this test only, of which nothing is left afterwards."""
    pool, before = ForkServerPool(), family()
    yield pool
    pool.close()
    assert family() <= before


def family(pid: int | None = None) -> set[psutil.Process]:
    """Return everything below a process that still runs."""
    return {process for process in psutil.Process(pid).children(recursive=True) if not ended(process)}


def template_of(server: ForkServer) -> psutil.Process:
    """Return the process from which a server was forked."""
    process = psutil.Process(server.pid).parent()
    assert process is not None
    return process


def test_a_server_reports_compilation_only_if_kernels_are_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for expected in ([True], []):
        said: list[bool] = []
        template = Template()
        ForkServer(template, COMPILED, lambda said=said: said.append(True)).close()
        template.close()
        assert said == expected


def test_a_pool_no_longer_compiles_once_the_server_runs(
    pool: ForkServerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with pool.use(COMPILED):
        assert not pool.compiling


def test_a_closed_pool_starts_none_of_the_servers_that_were_prepared(pool: ForkServerPool) -> None:
    """Closing the pool meets one thread that is about to start a server, and one that has not begun."""
    with pool._starting[NONE]:
        pool.prepare(NONE)
        wait_until(lambda: pool._uses[NONE] == 1)
        pool.close()
    with pool._lock:  # neither the thread nor the closing can begin
        pool.prepare(NONE)
        (closing := threading.Thread(target=pool.close)).start()
    for thread in threading.enumerate():
        if thread is closing or thread.name == "datakit-boot":
            thread.join(120)
    assert pool._template is None


def test_servers_of_a_pool_share_a_template_but_no_session(pool: ForkServerPool) -> None:
    with pool.use(NONE) as first, pool.use(preload("use_compute")) as second:
        template = template_of(first)
        assert template_of(second) == template
        assert template.ppid() == os.getpid()
        processes = {template.pid, first.pid, second.pid}
        assert len(processes) == 3
        assert {os.getsid(pid) for pid in processes} == processes, "or Ctrl-C would end them before the driver decides"


def test_no_process_holds_the_descriptors_of_another(pool: ForkServerPool) -> None:
    """Otherwise, a server could outlive its client, because another process kept the control socket open."""

    def held(pid: int) -> set[str]:
        links = {os.readlink(entry) for entry in os.scandir(f"/proc/{pid}/fd") if int(entry.name) > 2}
        return {link for link in links if link.startswith(("socket:", "pipe:"))}

    with pool.use(NONE) as first, pool.use(preload("use_compute")) as second:
        holders = [held(pid) for pid in (template_of(first).pid, first.pid, second.pid)]
    assert sum(map(len, holders)) == len(set.union(*holders))


@pytest.mark.parametrize(("function", "how"), [("leave", "exit code 3"), ("die", "SIGKILL")])
def test_a_server_that_dies_while_starting_is_reported_with_its_exit_code(
    pool: ForkServerPool, function: str, how: str
) -> None:
    with (
        pytest.raises(BootDeathError, match=rf"died while starting \({how}\); it wrote nothing"),
        pool.use(preload(function)),
    ):
        pass
    with pool.use(NONE) as server:
        assert server.alive()


def test_a_bad_preload_harms_only_its_own_server(pool: ForkServerPool) -> None:
    with pytest.raises(BootError, match="the preloads started threads"), pool.use(preload("start_thread")):
        pass
    with pool.use(preload("poison")) as poisoned, pool.use(preload("use_compute")) as server:
        assert template_of(poisoned) == template_of(server)


@pytest.mark.parametrize("libraries", ["('no_such_library',)", "('tests.support.engine.thread_at_import',)"])
def test_libraries_that_cannot_be_used_are_reported_by_each_server(
    monkeypatch: pytest.MonkeyPatch, libraries: str
) -> None:
    program = "from datakit.engine.worker import forkserver_template as template"
    monkeypatch.setattr(
        "datakit.engine.worker.forkserver_client.PROGRAM",
        f"{program}; template.LIBRARIES = {libraries}; template.main()",
    )
    pool = ForkServerPool()
    for _ in range(2):
        with pytest.raises(BootError, match=r"ModuleNotFoundError|the libraries started threads"), pool.use(NONE):
            pass
    pool.close()


def test_a_server_gets_the_present_environment(
    pool: ForkServerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool.use(NONE):
        monkeypatch.setenv("DATAKIT_TEST_VARIABLE", "new")
    with pool.use(preload("record_variable", "DATAKIT_TEST_VARIABLE", str(tmp_path / "seen"))):
        assert (tmp_path / "seen").read_text() == "new"
    with pool.use(preload("record_variable", "OMP_NUM_THREADS", str(tmp_path / "threads"))):
        assert (tmp_path / "threads").read_text() == "1"


def test_a_killed_server_is_replaced(pool: ForkServerPool) -> None:
    with pool.use(NONE) as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive())
    with pool.use(NONE) as other:
        assert other.alive() and other.pid != server.pid


def test_a_killed_template_takes_its_servers_along_and_is_replaced(pool: ForkServerPool) -> None:
    with pool.use(NONE) as first, pool.use(preload("use_compute")) as second:
        below, template = family(), template_of(first)
        template.kill()
        wait_until(lambda: not first.alive() and not second.alive())
        wait_until(lambda: all(map(ended, below & {template, *map(psutil.Process, (first.pid, second.pid))})))
    with pool.use(NONE) as other:
        assert template_of(other) != template


def test_servers_with_different_preloads_start_at_the_same_time(pool: ForkServerPool, tmp_path: Path) -> None:
    """Each preload waits for the other, so no server would start if they started one after the other."""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    pool.prepare(preload("meet", one, two))
    with pool.use(preload("meet", two, one)) as second, pool.use(preload("meet", one, two)) as first:
        assert first.alive() and second.alive() and first.pid != second.pid


def test_prepared_server_is_used_by_all(pool: ForkServerPool) -> None:
    pool.prepare(preload("use_compute"))
    pids = set()
    for _ in range(3):
        with pool.use(preload("use_compute")) as server:
            pids.add(server.pid)
    assert len(pids) == 1


def test_surplus_idle_servers_are_closed() -> None:
    pool, before = ForkServerPool(limit=1), family()
    with pool.use(NONE) as first:
        with pool.use(preload("use_compute")) as second:
            assert first.alive() and second.alive(), "a server in use is kept"
        with pool.use(COMPILED):
            wait_until(lambda: not second.alive())
            assert first.alive()
    pool.close()
    assert family() <= before


def test_server_that_starts_while_the_pool_is_closed_is_closed_too(pool: ForkServerPool, tmp_path: Path) -> None:
    started = tmp_path / "started"
    pool.prepare(preload("meet", str(started), str(tmp_path / "never")))
    wait_until(started.exists)
    pool.close()


def test_a_template_that_dies_while_starting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('no interpreter'); sys.exit('no libraries')"
    monkeypatch.setattr("datakit.engine.worker.forkserver_client.PROGRAM", program)
    pool = ForkServerPool()
    for _ in range(2):
        with pytest.raises(BootDeathError, match=r"the template process died .*exit code 1") as death, pool.use(NONE):
            pass
        assert death.value.error_type == BOOT_DEATH
        assert str(death.value).splitlines()[1:] == ["  no interpreter", "  no libraries"]
    pool.close()


def test_output_of_a_starting_server_is_shown_on_standard_error(
    pool: ForkServerPool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard output holds only data."""
    with pool.use(preload("speak")):
        pass
    assert tuple(capfd.readouterr()) == ("", "to standard output\nto standard error\n")


def test_output_of_a_started_server_goes_to_standard_error(
    pool: ForkServerPool, capfd: pytest.CaptureFixture[str]
) -> None:
    with pool.use(NONE) as server:
        error = os.readlink("/proc/self/fd/2")
        assert [os.readlink(f"/proc/{server.pid}/fd/{number}") for number in (1, 2)] == [error, error]


def test_a_server_that_does_not_react_is_killed(pool: ForkServerPool) -> None:
    with pool.use(NONE) as server:
        stopped = psutil.Process(server.pid)
        stopped.suspend()
        started = time.monotonic()
        server.close()
        assert ended(stopped) and time.monotonic() - started < 10


def test_a_killed_parent_leaves_no_process_even_if_a_preload_hangs(tmp_path: Path) -> None:
    file = tmp_path / "started"
    parent = subprocess.Popen([sys.executable, "-c", KILLED_PARENT, str(file)], cwd=REPOSITORY)
    wait_until(file.exists)
    below = family(parent.pid)
    assert len(below) >= 7, "a template process, three servers and their watchers"
    parent.kill()
    parent.wait()
    wait_until(lambda: all(map(ended, below)))


CHANGED_INSTALLATION = """
import sys
from pathlib import Path
from datakit.engine.worker.forkserver_client import BootError, ForkServerPool
pool = ForkServerPool()
with pool.use(()):
    pass
changed = Path(sys.argv[1], "datakit", "text", "__init__.py")
changed.write_text(changed.read_text() + "# another revision")
from datakit.engine.task import Preload
try:
    with pool.use((Preload("json"),)):
        pass
except BootError as error:
    print(error.reply["cause"], error.reply["message"])
pool.close()
"""


def test_a_server_refuses_files_of_datakit_that_changed_during_the_run(tmp_path: Path) -> None:
    """As an upgrade would change them, with which new processes would run other code than the driver."""
    shutil.copytree(REPOSITORY / "datakit", tmp_path / "datakit", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHANGED_INSTALLATION, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"refused the files of datakit in {tmp_path}/datakit changed after"), done.stderr
