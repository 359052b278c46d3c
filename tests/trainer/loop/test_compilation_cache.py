"""Compiled functions are kept on disks and in buckets, and a place that cannot be used is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from datakit.errors import UsageError
from datakit.trainer.config import DEFAULT_CACHE
from datakit.trainer.loop.compilation_cache import use_compilation_cache
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root
from tests.support.trainer.trainer_runs import silent

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
COMPILES = """
import sys, jax, jax.numpy as jnp
from datakit.trainer.loop import compilation_cache
compilation_cache.LEAST_SECONDS = 0.0
compilation_cache.use_compilation_cache(sys.argv[1], print)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))).block_until_ready()
print("hits", sum(name.endswith("/cache_hits") for name in hits))
"""


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Restore JAX's settings."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_directory_is_used_and_made(tmp_path: Path) -> None:
    use_compilation_cache("", silent)
    before = getattr(jax.config, NAMES[0])
    assert before != str(tmp_path / "cache")
    use_compilation_cache(str(tmp_path / "cache"), silent)
    assert getattr(jax.config, NAMES[0]) == str(tmp_path / "cache")


def test_the_next_process_finds_what_one_has_compiled_in_a_bucket() -> None:
    with s3_root() as root:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
        environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", COMPILES, f"{root}/compiled"]
        first, second = (subprocess.check_output(command, env=environment, text=True) for _ in range(2))
    assert first.splitlines()[-1] == "hits 0"
    assert int(second.split()[-1]) > 0


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"compilation_cache = '.*file/inside' cannot be used .* or \"\" to keep no"):
        use_compilation_cache(str(tmp_path / "file/inside"), silent)


def test_the_default_place_is_given_up_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    (tmp_path / ".cache").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    before = getattr(jax.config, NAMES[0])
    use_compilation_cache(DEFAULT_CACHE, lines.append)
    assert getattr(jax.config, NAMES[0]) == before
    assert lines[0].startswith("warning: compilation_cache = ")
