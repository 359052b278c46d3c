"""A root on S3 gets the bytes of a root on disk, in a bounded number of requests, even if the store fails now and then.

The root is on a real S3 server over HTTP (moto), behind a proxy that can refuse a share of all requests.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import datakit
from datakit.pipeline.lineage import StepDescription
from datakit.retention.leftovers import find_leftovers
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
MOST_REQUESTS = 300  # for a run of 8 steps; 345 were counted with three sources, 10 steps and 37 files
# The whole flow takes long, because two servers in Python serve it, so `make test` runs only its first stages on a
# failing store.
UNTIL = ["normalize", pytest.param(None, marks=pytest.mark.soak)]


pytestmark = pytest.mark.xdist_group("running-on-s3")  # one worker makes the root


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of one source."""
    made = write_shelf(tmp_path_factory.mktemp("shelf"), sources=1)
    settle()
    return made


@pytest.fixture(scope="module")
def on_disk(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> datakit.RunResult:
    """An undisturbed run on disk."""
    return datakit.run(recipe, root=tmp_path_factory.mktemp("disk"), workers=WORKERS)


@pytest.fixture
def store() -> Iterator[tuple[str, Proxy]]:
    """An empty root on S3, and the proxy in front of it, which refuses nothing yet."""
    with s3_root() as root, faulty_proxy(0.0) as proxy:
        yield root, proxy


@dataclass
class StoredRun:
    """A run on S3 with its requests by method, and those of a second run that finds everything done."""

    root: str
    result: datakit.RunResult
    first: Counter[str]
    second: Counter[str]


@pytest.fixture(scope="module")
def stored(recipe: Path) -> Iterator[StoredRun]:
    """The recipe run twice on a store that never fails."""
    with s3_root() as root, faulty_proxy(0.0) as proxy:
        result = datakit.run(recipe, root=root, workers=WORKERS)
        first = proxy.requests.copy()
        assert datakit.run(recipe, root=root, workers=WORKERS).reused
        yield StoredRun(root, result, first, proxy.requests - first)


def test_number_of_requests_is_bounded(stored: StoredRun) -> None:
    print(f"a run: {stored.first.total()} requests ({dict(stored.first)})")
    assert stored.first.total() < MOST_REQUESTS


def test_finished_root_costs_few_reads_and_one_lease(stored: StoredRun) -> None:
    print(f"already done: {stored.second.total()} requests ({dict(stored.second)})")
    assert (stored.second["PUT"], stored.second["POST"], stored.second["DELETE"]) == (1, 0, 1), "only for the lease"
    assert stored.second.total() < 50


def test_root_on_s3_works_like_one_on_disk(stored: StoredRun, on_disk: datakit.RunResult) -> None:
    assert [step.manifest for step in stored.result.steps] == [step.manifest for step in on_disk.steps]
    assert tree(stored.root) == tree(on_disk.root)
    found = datakit.inspect(f"{stored.root}/shelf")
    assert isinstance(found, StepDescription)
    assert (found.stage, found.tokens) == ("tokenize", on_disk.steps[-1].manifest.totals.tokens)
    assert all(entry.found for entry in found.lineage)
    assert {step.state for step in datakit.status(stored.root)} == {"done"}
    assert find_leftovers(stored.root) == []


@pytest.mark.parametrize("until", UNTIL)
def test_failing_store_gets_the_same_bytes(
    recipe: Path, on_disk: datakit.RunResult, store: tuple[str, Proxy], until: str | None
) -> None:
    root, proxy = store
    proxy.share = 0.1
    datakit.run(recipe, root=root, workers=WORKERS, until=until)
    proxy.share = 0.0
    print(f"{proxy.requests.total()} requests ({dict(proxy.requests)}), of them refused: {dict(proxy.injected)}")
    assert set(proxy.injected) == {"SlowDown", "InternalError", "InternalErrorAfterwards"}
    _assert_same(root, on_disk, until)


@pytest.mark.parametrize("until", UNTIL)
def test_driver_killed_on_a_failing_store_resumes_to_the_same_bytes(
    recipe: Path, on_disk: datakit.RunResult, store: tuple[str, Proxy], until: str | None
) -> None:
    root, proxy = store
    proxy.share = 0.05
    command = [sys.executable, "-m", "datakit", "run", str(recipe), "--root", root, "--workers", str(WORKERS)]
    driver = subprocess.Popen(
        command, cwd=ROOT_OF_THE_CODE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    moment = "normalize-" if until else "dedup-"
    begun = wait_until(lambda: any(moment in info.path for info in urls.listing(root)), 120)
    family = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    driver.send_signal(signal.SIGKILL)
    assert begun and driver.wait(60) == -signal.SIGKILL, "it was to be killed in the middle"
    assert wait_until(lambda: all(ended(process) for process in family), 60)
    datakit.run(recipe, root=root, workers=WORKERS, until=until)
    proxy.share = 0.0
    _assert_same(root, on_disk, until)


def _of_steps(files: dict[str, str], until: str | None) -> dict[str, str]:
    """Return the files of the steps up to `until`. A killed driver may have begun later ones."""
    steps = ("/download-", "/normalize-") if until == "normalize" else ("",)
    return {
        path: data
        for path, data in files.items()
        if not path.startswith(".cache") and any(step in path for step in steps)
    }


def _assert_same(root: str, on_disk: datakit.RunResult, until: str | None) -> None:
    assert _of_steps(tree(root), until) == _of_steps(tree(on_disk.root), until)
    assert not committed_twice(root)
