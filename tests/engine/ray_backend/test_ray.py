"""The same promises on a Ray cluster: real clusters, real kills. Whatever a test starts is gone when it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("datakit[ray] is not installed", allow_module_level=True)

from datakit.engine.executor import Attempt, Cause, Outcome
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.ray_backend.agreement import Expected, NodeReport, require
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.task import Task
from datakit.engine.versions import comparable_versions
from datakit.engine.worker import memory_watcher
from datakit.engine.worker.local_executor import LocalExecutor
from datakit.errors import ColumnError, InputError, RootError, UsageError
from datakit.storage import urls
from tests.support.engine import engine_tasks
from tests.support.faults.cluster import MARK, ROOT_OF_THE_CODE, TwoNodes, marked, processes_with, two_nodes, wait_until
from tests.support.processes import ended, kill
from tests.support.s3 import s3_root

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    """A private cluster of two slots, for all tests that do not break it."""
    root = tmp_path_factory.mktemp("local")
    with marked(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAKIT_TEST_VARIABLE", "travels")
        executor = RayExecutor("local", str(root), workers=2)
        yield executor
        executor.close()


def run_all(executor: RayExecutor | LocalExecutor, attempts: list[Attempt], seconds: float = 40) -> list[Outcome]:
    """Submit, and wait for all."""
    for attempt in attempts:
        executor.submit(attempt)
    outcomes: list[Outcome] = []
    end = time.monotonic() + seconds
    while len(outcomes) < len(attempts):
        assert time.monotonic() < end, f"{len(outcomes)} of {len(attempts)} attempts ended in {seconds} s"
        outcomes += executor.wait(1.0)
    return outcomes


def attempt(function: str, directory: Path, index: int = 1, **arguments: object) -> Attempt:
    """An attempt at a task of the tests; `index` makes its key."""
    task = Task(f"{function}-{index}", f"tests.{function.replace('/', ':')}", arguments)
    return Attempt(task, "test", str(directory), 1, 1, 1 << 30)


def test_attempts_end_as_they_do_locally(local: RayExecutor, tmp_path: Path) -> None:
    assert local.slots == 2
    faults: dict[str | None, tuple[Cause, str]] = {
        None: (Cause.DONE, ""),
        "raise": (Cause.ERROR, "ValueError"),
        "refuse": (Cause.REFUSED, "ColumnError"),
        "segfault": (Cause.CRASH, "SIGSEGV"),
        "exit": (Cause.CRASH, "exit code 3 without a result"),
    }
    attempts = [
        attempt("engine_tasks/write_number", tmp_path, number, number=number, fault=fault)
        for number, fault in enumerate(faults)
    ]
    outcomes = sorted(run_all(local, attempts), key=lambda outcome: outcome.key)
    assert [(outcome.cause, outcome.error_type) for outcome in outcomes] == list(faults.values())
    assert all("secret" not in outcome.message for outcome in outcomes)
    assert outcomes[0].result is not None
    assert (tmp_path / outcomes[0].result.outputs[0].path).read_text() == "0"


def test_a_step_has_the_same_bytes_as_on_one_machine(local: RayExecutor, tmp_path: Path) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    faults = {2: "segfault", 9: "raise"}  # once each: the driver's retries work through the seam
    for name, executor, options in (
        ("ray", local, {"faults": faults, "markers": str(markers)}),
        ("one", LocalExecutor(1), {}),
    ):
        plan = engine_tasks.numbers(8, **options)  # pyright: ignore[reportArgumentType]
        step = engine_tasks.number_step(str(tmp_path / name))
        run_step(step, plan, lambda executor=executor: executor, RunOptions(), SilentObserver())
        if isinstance(executor, LocalExecutor):
            executor.close()

    def files(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file() and "ledger" not in path.parts)
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    assert len(list(markers.iterdir())) == 2
    assert files(tmp_path / "ray") == files(tmp_path / "one")


def test_a_refusal_in_a_task_reaches_the_user_as_what_it_is(local: RayExecutor, tmp_path: Path) -> None:
    plan = engine_tasks.numbers(1, faults={0: "refuse"})
    with pytest.raises(ColumnError, match="no column 'text'; it has 'body'"):
        run_step(engine_tasks.number_step(str(tmp_path)), plan, lambda: local, RunOptions(), SilentObserver())


def test_a_child_inside_a_ray_worker_is_as_clean_as_a_local_one(local: RayExecutor, tmp_path: Path) -> None:
    (outcome,) = run_all(local, [attempt("engine_tasks/look_around", tmp_path)])
    assert outcome.result is not None, outcome
    facts = outcome.result.details
    assert not {"ray", "jax", "datakit.cli", "pytest"} & set(facts["modules"])
    assert facts["main"] is None, "neither Ray's worker script nor the driver's"
    assert facts["tasks"] - 1 <= 1, "one thread, and at the most pyarrow's allocator's"
    assert facts["parent"] not in (os.getpid(), *(child.pid for child in psutil.Process().children()))
    server = psutil.Process(facts["parent"])
    assert server.cmdline()[1] == "-c", "the parent is the fork server"
    worker = server.parent()
    assert worker is not None
    assert worker.cmdline()[0].startswith("ray::"), "and its parent the Ray worker, which stays"


def test_an_attempt_costs_a_fork_and_not_an_interpreter(local: RayExecutor, tmp_path: Path) -> None:
    count = 100
    warm = [attempt("engine_tasks/look_around", tmp_path, number) for number in range(20)]
    parents = {outcome.result.details["parent"] for outcome in run_all(local, warm) if outcome.result}
    began = time.monotonic()
    attempts = [attempt("engine_tasks/write_number", tmp_path, number, number=number) for number in range(count)]
    outcomes = run_all(local, attempts)
    slot = (time.monotonic() - began) * local.slots / count
    work = sum(outcome.work_seconds for outcome in outcomes) / count
    print(f"\nslot time of an attempt on Ray: {slot * 1e3:.1f} ms, {work * 1e3:.1f} ms of it work", file=sys.stderr)
    again = {outcome.result.details["parent"] for outcome in run_all(local, warm) if outcome.result}
    assert len(parents | again) <= 2 * local.slots, "fork servers are reused"
    assert {outcome.cause for outcome in outcomes} == {Cause.DONE}


def test_environment_variables_of_storage_travel(local: RayExecutor, tmp_path: Path) -> None:
    (outcome,) = run_all(local, [attempt("ray_tasks/variables", tmp_path, names=["DATAKIT_TEST_VARIABLE"])])
    assert outcome.result is not None
    assert outcome.result.details == {"DATAKIT_TEST_VARIABLE": "travels"}


def sleeping(executor: RayExecutor, directory: Path) -> tuple[psutil.Process, psutil.Process, psutil.Process]:
    """Start an attempt that sleeps; its process, its fork server, its Ray worker."""
    file = directory / f"pids-{uuid.uuid4().hex}"
    executor.submit(attempt("ray_tasks/announce_and_sleep", directory, file=str(file)))
    assert wait_until(file.exists, 20), "the attempt did not start"
    child, server = (psutil.Process(int(pid)) for pid in file.read_text().split())
    worker = server.parent()
    assert worker is not None
    return child, server, worker


def gone(process: psutil.Process) -> bool:
    return ended(process)


def test_a_killed_ray_worker_is_infrastructure_and_leaves_no_orphan(
    local: RayExecutor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child, server, worker = sleeping(local, tmp_path)
    worker.send_signal(signal.SIGKILL)
    end, outcomes = time.monotonic() + 20, []
    while not outcomes and time.monotonic() < end:
        outcomes = local.wait(1.0)
    (outcome,) = outcomes
    assert (outcome.cause, outcome.error_type) == (Cause.INFRASTRUCTURE, "WorkerCrashedError")
    assert "its Ray worker process died (WorkerCrashedError" in outcome.message
    assert wait_until(lambda: gone(child) and gone(server), 5), "the child and its fork server went with the worker"
    run_all(local, [attempt("engine_tasks/write_number", tmp_path, number=1)])
    assert capfd.readouterr().out == "", "Ray does not write to the driver's standard output"


def test_a_killed_child_is_not_blamed_on_the_cluster(local: RayExecutor, tmp_path: Path) -> None:
    child, _, worker = sleeping(local, tmp_path)
    child.send_signal(signal.SIGKILL)
    (outcome,) = local.wait(20.0)
    assert (outcome.cause, outcome.error_type) == (Cause.KILLED, "SIGKILL")
    assert worker.is_running()


def test_an_attempt_larger_than_every_node_runs_all_the_same(local: RayExecutor, tmp_path: Path) -> None:
    large = replace(attempt("engine_tasks/write_number", tmp_path, number=1), cpus=999, memory_bytes=1 << 50)
    assert [outcome.cause for outcome in run_all(local, [large])] == [Cause.DONE]


PRIVATE = """
import json, os, sys, time
from pathlib import Path
from datakit.engine.ray_backend.executor import RayExecutor
from tests.engine.ray_backend.test_ray import attempt, gone, sleeping, wait_until

root = Path(sys.argv[1])
executor = RayExecutor("local", str(root), workers=2)
family = sleeping(executor, root)
executor.submit(attempt("ray_tasks/announce_and_sleep", root, 2, file=str(root / "second")))
print("running", flush=True)
if sys.argv[2] == "close":
    began = time.monotonic()
    executor.close()
    executor.close()
    print(json.dumps({"seconds": time.monotonic() - began, "gone": wait_until(lambda: all(map(gone, family)), 5)}))
time.sleep(60 if sys.argv[2] == "sleep" else 0)
"""


def private(tmp_path: Path, mark: str, then: str) -> subprocess.Popen[str]:
    """A driver of its own with a private cluster, home and temporary directory."""
    for name in ("home", "temporary", "root"):
        (tmp_path / name).mkdir()
    variables = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": f"/tmp/{mark[:8]}",
        MARK: mark,
        "PYTHONPATH": ROOT_OF_THE_CODE,
        "RAY_ADDRESS": "127.0.0.1:1",  # of a cluster that is gone: none of its business
    }
    Path(variables["TMPDIR"]).mkdir()  # short: the paths of Unix sockets are limited
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | variables
    command = [sys.executable, "-c", PRIVATE, str(tmp_path / "root"), then]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_closing_kills_what_runs_and_leaves_nothing(tmp_path: Path) -> None:
    with marked() as mark:
        driver = private(tmp_path, mark, "close")
        output = driver.communicate(timeout=60)[0].splitlines()
        facts = json.loads(output[1])
        print(f"\nclosing a private cluster: {facts['seconds']:.1f} s", file=sys.stderr)
        assert driver.returncode == 0
        assert facts["gone"]
        assert wait_until(lambda: not processes_with(mark), 5), processes_with(mark)
        left = [path.name for path in Path(f"/tmp/{mark[:8]}").iterdir() if path.name.startswith("datakit-ray")]
        shutil.rmtree(f"/tmp/{mark[:8]}")
        assert left == [], "Ray's own files are gone"
        assert list((tmp_path / "home").iterdir()) == [], "no token is left in the home directory"
        assert not (tmp_path / "root/.probe").exists()


def ended_late(mark: str) -> list[list[str]]:
    """What still runs, but for workers that Ray was just starting: these find out at their first timeout."""
    commands = []
    for process in processes_with(mark):
        with contextlib.suppress(psutil.Error):
            commands.append(process.cmdline())
    return [command for command in commands if "default_worker.py" not in " ".join(command)]


def test_a_killed_driver_takes_its_private_cluster_along(tmp_path: Path) -> None:
    with marked() as mark:
        driver = private(tmp_path, mark, "sleep")
        assert driver.stdout is not None
        assert driver.stdout.readline() == "running\n"
        driver.kill()
        driver.communicate(timeout=10)
        assert wait_until(lambda: not ended_late(mark), 20), ended_late(mark)
        shutil.rmtree(f"/tmp/{mark[:8]}")


def test_an_address_where_nobody_answers_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        run_driver("127.0.0.1:9", tmp_path)
    with pytest.raises(UsageError, match="'somewhere' is no address of a Ray cluster; use local, auto or host:port"):
        run_driver("somewhere", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_node_must_have_in_common_is_named() -> None:
    expected = Expected("/data", "/data/.probe/n", "abc", {"python": "3.11", "pyarrow": "26.0.1", "datakit": "0.1.0"})
    require(expected, NodeReport("b", 1, "abc", "", dict(expected.versions)), "b")
    with pytest.raises(InputError) as other:
        require(expected, NodeReport("b", 1, "abc", "", expected.versions | {"pyarrow": "25.0.0"}), "b (10.0.0.2)")
    assert "node b (10.0.0.2)" in str(other.value)
    assert "pyarrow is 25.0.0, the driver has 26.0.1" in str(other.value)
    with pytest.raises(RootError, match="another content"):
        require(expected, NodeReport("b", 1, "xyz", "", expected.versions), "b")
    assert {"python", "pyarrow", "numpy"} <= set(comparable_versions())


DRIVER = """
import json, sys
from pathlib import Path
from datakit.engine.scheduler.driver import RunOptions, run_step
from datakit.engine.ray_backend.executor import RayExecutor
from datakit.engine.observe.observer import SilentObserver
from datakit.errors import DatakitError
from tests import engine_tasks, ray_tasks

address, root, count, seconds = sys.argv[1:]
try:
    executor = RayExecutor(address, root)
except DatakitError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error), "exit": error.exit_code}))
    raise SystemExit
slots = executor.slots
print(json.dumps({"slots": slots}), flush=True)
step = engine_tasks.number_step(root + "/step")
plan = ray_tasks.places(int(count), float(seconds))
manifest = run_step(step, plan, lambda: executor, RunOptions(), SilentObserver())
executor.close()
lines = [json.loads(line) for path in Path(root).rglob("*.jsonl") for line in open(path)]
causes, messages = ([line.get(what) for line in lines] for what in ("cause", "message"))
facts = {"raylets": manifest.details["raylets"], "rows": manifest.totals.rows}
print(json.dumps(facts | {"causes": causes, "messages": messages}))
"""


def driver_command(address: str, root: Path | str, count: int = 0, seconds: float = 0.0) -> list[str]:
    return [sys.executable, "-c", DRIVER, address, str(root), str(count), str(seconds)]


def run_driver(
    address: str, root: Path | str, variables: dict[str, str] | None = None, count: int = 0, seconds: float = 0.0
) -> dict[str, Any]:
    """A driver in a process of its own. Raises what it raised."""
    environment = os.environ | {"PYTHONPATH": ROOT_OF_THE_CODE} | (variables or {})
    command = driver_command(address, root, count, seconds)
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout, run.stderr
    answer = json.loads(run.stdout.splitlines()[-1])
    if "error" in answer:
        kinds = {kind.__name__: kind for kind in (RootError, UsageError, InputError)}
        assert answer["exit"] == 2
        raise kinds[answer["error"]](answer["message"])
    return answer


@pytest.fixture(scope="module", name="two_nodes")
def two_nodes_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """A cluster of two nodes, for all tests that do not break it."""
    with two_nodes(tmp_path_factory.mktemp("private")) as cluster:
        yield cluster


def test_a_step_uses_both_nodes_of_a_cluster(two_nodes: TwoNodes, tmp_path: Path) -> None:
    answer = run_driver(two_nodes.address, tmp_path, two_nodes.environment, 6, 0.3)
    assert len(answer["raylets"]) == 2
    assert answer["rows"] == 6
    assert not (tmp_path / ".probe").exists()


def test_a_step_on_a_cluster_with_its_root_in_an_object_store(two_nodes: TwoNodes) -> None:
    with s3_root() as root:
        credentials = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        answer = run_driver(two_nodes.address, root, two_nodes.environment | credentials, 6, 0.3)
        files = [info.path for info in urls.listing(root) if "ledger" not in info.path]
    assert len(answer["raylets"]) == 2
    assert files == ["step/manifest.json", *(f"step/number-{number:03d}.txt" for number in range(6))]


def test_a_node_that_does_not_share_the_root_is_named(two_nodes: TwoNodes) -> None:
    with pytest.raises(RootError) as refused:
        run_driver(two_nodes.address, two_nodes.private_root, two_nodes.environment)
    message = str(refused.value)
    assert message.startswith(f"node {os.uname().nodename} (")
    assert (
        f"does not share the root {two_nodes.private_root}: a file that the driver wrote there is not there" in message
    )
    assert "s3://" in message
    assert list(two_nodes.private_root.iterdir()) == [], "nothing was written"


def test_a_node_with_other_versions_is_named(two_nodes: TwoNodes, tmp_path: Path) -> None:
    (tmp_path / "other/zstandard-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "other/zstandard-0.0.1.dist-info/METADATA").write_text("Name: zstandard\nVersion: 0.0.1\n")
    path = os.pathsep.join([ROOT_OF_THE_CODE, str(tmp_path / "other")])
    with pytest.raises(InputError, match=r"node .* zstandard is .*, the driver has 0\.0\.1; install the same"):
        run_driver(two_nodes.address, tmp_path, two_nodes.environment | {"PYTHONPATH": path})


@pytest.mark.parametrize("ours", [{"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}])
def test_a_cluster_that_wants_a_token_says_so(two_nodes: TwoNodes, tmp_path: Path, ours: dict[str, str]) -> None:
    wrong = two_nodes.environment | {"RAY_NUM_REDIS_GET_RETRIES": "2"} | ours  # 2 s and not 20
    with pytest.raises(
        UsageError, match=r"cannot join the Ray cluster at .*set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    ):
        run_driver(two_nodes.address, tmp_path, wrong)


def attempts_below(node: psutil.Process) -> list[psutil.Process]:
    """The running attempts of a node: fork servers' copies of themselves."""
    try:
        servers = [process for process in node.children(recursive=True) if "zygote" in " ".join(process.cmdline())]
        pids = {process.pid for process in servers}
        return [
            process for process in servers if process.ppid() in pids and process.name() != memory_watcher.NAME.decode()
        ]
    except psutil.Error:
        return []


def test_a_lost_node_costs_only_what_ran_there(two_nodes: TwoNodes, tmp_path: Path) -> None:
    environment = os.environ | two_nodes.environment
    command = driver_command(two_nodes.address, tmp_path, 8, 0.8)
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert json.loads(driver.stdout.readline())["slots"] == 2
    assert wait_until(lambda: attempts_below(two_nodes.second), 30), "the second node got nothing to do"
    family = [*two_nodes.second.children(recursive=True), two_nodes.second]
    kill(family)
    (answer,) = (json.loads(line) for line in driver.communicate(timeout=60)[0].splitlines())
    assert answer["rows"] == 8
    assert answer["causes"].count("done") == 8
    assert set(answer["causes"]) - {None} == {"done", "infrastructure"}
    (message, *_) = filter(None, answer["messages"])
    assert re.match(r"its (node|Ray worker process) died.*\((NodeDied|WorkerCrashed)Error: .*next: ", message), message
    assert all(gone(process) for process in family)
