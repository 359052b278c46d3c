"""A fork server tells its parent that it compiles kernels while it boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.task import Preload
from datakit.engine.worker.forkserver_client import ForkServer, ForkServerPool

EXAMPLE = "tests.support.engine.compiled_example"
PRELOADS = (Preload(EXAMPLE, f"{EXAMPLE}:warm"),)


def test_a_server_reports_compilation_only_if_kernels_are_not_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for expected in ([True], []):
        said: list[bool] = []
        server = ForkServer(PRELOADS, lambda said=said: said.append(True))
        server.close()
        assert said == expected


def test_a_pool_no_longer_compiles_once_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    pool = ForkServerPool()
    with pool.use(PRELOADS):
        assert not pool.compiling
    pool.close()
