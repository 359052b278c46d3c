"""Set up before any test: eight fake JAX devices, a shared compilation cache, run-time checks of the trainer's shape
annotations, Hypothesis without deadlines (machines may be busy), and Ctrl-C for the programs that tests start.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from datakit.engine import interpreter
from datakit.engine.worker import forkserver_client
from tests.support.faults.shared_cluster import shared_cluster, token_cluster  # noqa: F401 - fixtures

FAKE_DEVICES = 8
# Programs are tiny and compiled often, so compile fast instead of well. Without the fusion emitters, compiling takes
# half as long.
FAST_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
MOST_COMPILED_BYTES = 256 << 20  # a run of all tests writes about 20 MB
SHAPED = ("models", "optimizers")
LONGEST_ID = 300  # characters of a parameter in the id of a test

XLA_FLAGS = f"--xla_force_host_platform_device_count={FAKE_DEVICES} {FAST_COMPILE}"
if XLA_FLAGS not in os.environ.get("XLA_FLAGS", ""):  # the flags are part of the compilation cache's keys
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Containers often forbid bytecode files; then each of the hundreds of started programs compiles all modules again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests, pytest-xdist workers and the programs that tests start share one cache of compiled XLA programs. It stays for
# the next run, which then spends half the time on the models' tests; entries are keyed by program, flags and version.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    folder = Path(__file__).parents[1] / ".pytest_cache/xla"
    if sum(file.stat().st_size for file in folder.glob("*")) > MOST_COMPILED_BYTES:
        shutil.rmtree(folder)
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

# As `datakit.engine.ray_backend.executor` does before it imports Ray; here a test may import Ray first.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

# A file of datakit that is edited while tests run must not fail all tests that start a worker process after that.
forkserver_client.installation_at_start = interpreter.installation

settings.register_profile("datakit", deadline=None)
settings.load_profile("datakit")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited by a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.small_shelf"]  # its fixtures: one finished root for all tests
collect_ignore_glob: list[str] = []
if importlib.util.find_spec("jax") is None:
    collect_ignore_glob.append("trainer*")  # reported in the header
elif importlib.util.find_spec("jaxtyping") and importlib.util.find_spec("beartype"):
    from jaxtyping import install_import_hook

    install_import_hook([f"datakit.trainer.{name}" for name in SHAPED], "beartype.beartype")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fail if pytest-xdist ignores the groups. With pytest 9.2 it did, so each worker started a cluster."""
    grouped = [item.nodeid for item in items if item.get_closest_marker("xdist_group")]
    if config.getoption("loadgroup", False) and not all("@" in name for name in grouped):
        raise pytest.UsageError("this pytest-xdist does not group tests with this pytest; install constraints.txt")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Shorten the ids of long texts. pytest puts the id of a running test into the environment, and Linux starts no
    program with more than 128 KiB in one variable.
    """
    return f"{argname}-of-{len(val)}" if isinstance(val, (str, bytes)) and len(val) > LONGEST_ID else None


def pytest_report_header() -> str:
    """Report what is not tested."""
    return "trainer: not tested without jax (pip install '.[train]')" if collect_ignore_glob else ""
