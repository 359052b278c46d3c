"""An object store that throttles and fails now and then: the same bytes, the same resume, a bounded number of requests.

The root is on a real S3 server over HTTP (moto), behind a proxy that refuses a share of all requests.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import datakit
from datakit.storage import urls
from tests.support.faults.chaos import committed_twice
from tests.support.faults.cluster import ROOT_OF_THE_CODE, wait_until
from tests.support.faults.faulty_proxy import Proxy, faulty_proxy
from tests.support.processes import ended
from tests.support.s3 import s3_root
from tests.support.small_shelf import settle
from tests.support.stdlib_shelf import write_shelf
from tests.support.trees import tree

WORKERS = 3
MOST_REQUESTS = 300  # a run of 7 steps; 345 were counted with three sources, 10 steps and 37 files


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of one source: each request through two servers in Python takes its time."""
    made = write_shelf(tmp_path_factory.mktemp("shelf"), sources=1)
    settle()
    return made


@pytest.fixture(scope="module")
def quiet(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run on a disk leaves."""
    root = str(tmp_path_factory.mktemp("quiet"))
    datakit.run(recipe, root=root, workers=WORKERS)
    return tree(root)


@pytest.fixture
def store() -> Iterator[tuple[str, Proxy]]:
    """An empty root on S3, and the proxy before it, which refuses nothing yet."""
    with s3_root() as root, faulty_proxy(0.0) as proxy:
        yield root, proxy


def test_a_store_that_refuses_every_tenth_request_gets_the_same_bytes(
    recipe: Path, quiet: dict[str, str], store: tuple[str, Proxy]
) -> None:
    root, proxy = store
    proxy.share = 0.1
    datakit.run(recipe, root=root, workers=WORKERS)
    proxy.share = 0.0
    print(f"{proxy.requests.total()} requests ({dict(proxy.requests)}), of them refused: {dict(proxy.injected)}")
    assert set(proxy.injected) == {"SlowDown", "InternalError", "InternalErrorAfterwards"}
    assert tree(root) == quiet
    assert not committed_twice(root)


def test_the_number_of_requests_is_bounded_and_a_second_run_costs_a_read_a_step(
    recipe: Path, store: tuple[str, Proxy]
) -> None:
    root, proxy = store
    datakit.run(recipe, root=root, workers=WORKERS)
    first = proxy.requests.copy()
    assert datakit.run(recipe, root=root, workers=WORKERS).reused
    second = proxy.requests - first
    print(f"a run: {first.total()} requests ({dict(first)}); found done: {second.total()} ({dict(second)})")
    assert first.total() < MOST_REQUESTS
    assert second["PUT"] == second["POST"] == second["DELETE"] == 0
    assert second.total() < 50


def test_a_driver_killed_on_a_failing_store_is_resumed_to_the_same_bytes(
    recipe: Path, quiet: dict[str, str], store: tuple[str, Proxy]
) -> None:
    root, proxy = store
    proxy.share = 0.05
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", root, "--workers", str(WORKERS)]
    driver = subprocess.Popen(
        command, cwd=ROOT_OF_THE_CODE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    begun = wait_until(lambda: any("dedup-" in info.path for info in urls.listing(root)), 60)
    family = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    driver.send_signal(signal.SIGKILL)
    assert begun and driver.wait(10) == -signal.SIGKILL, "it was to be killed in the middle"
    assert wait_until(lambda: all(ended(process) for process in family), 20)
    datakit.run(recipe, root=root, workers=WORKERS)
    proxy.share = 0.0
    assert tree(root) == quiet
    assert not committed_twice(root)
