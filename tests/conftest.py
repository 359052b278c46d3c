"""Before any test: eight fake devices for jax, and the trainer's shape annotations checked as its code runs."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

FAKE_DEVICES = 8

# What is computed here is tiny and compiled often: compile fast, not well.
FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={FAKE_DEVICES}", FAST_COMPILE]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("jax") is None:
    collect_ignore_glob.append("test_trainer_*.py")  # see the report's header
elif importlib.util.find_spec("jaxtyping") and importlib.util.find_spec("beartype"):
    from jaxtyping import install_import_hook

    install_import_hook("datakit.trainer", "tests.conftest.checked")


def checked(function: Any) -> Any:
    """The run-time type checker: beartype, for which an int is a float, as it is for type checkers."""
    from beartype import BeartypeConf, beartype

    return beartype(conf=BeartypeConf(is_pep484_tower=True))(function)


def pytest_report_header() -> str:
    """Say what is not tested here."""
    return "trainer: not tested, there is no jax (pip install 'datakit[train]')" if collect_ignore_glob else ""
