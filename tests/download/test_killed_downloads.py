"""A run that is killed in the middle of a file leaves what has arrived, and the next run requests only the rest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from datakit.storage import locks
from tests.support.hub_server import faults
from tests.support.hub_server.fixtures import hub
from tests.support.hub_server.hub import Hub

__all__ = ["hub"]  # a fixture
SIZE = 6_000_000
PATIENCE_SECONDS = 120.0


def command(recipe: Path, root: Path) -> list[str]:
    return [sys.executable, "-m", "datakit", "run", str(recipe), "--root", str(root), "--until", "download"]


def arrived(root: Path) -> tuple[Path | None, int]:
    """The unfinished file, and how many of its bytes have arrived. It has a single part."""
    for counts in root.glob("sources/web/download-*/exchange/partial/*.parts"):
        data = counts.read_bytes()
        return counts.with_suffix(""), int.from_bytes(data[-8:], "little") if len(data) > 8 else 0
    return None, 0


def wait_for(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_killed_run_continues_at_the_byte_that_it_had_reached(hub: Hub, tmp_path: Path) -> None:
    content, root, recipe = random.Random(3).randbytes(SIZE), tmp_path / "root", tmp_path / "recipe.toml"
    hub.repository.commit({"a.bin": content})
    recipe.write_text(
        f'name = "shelf"\n[[sources]]\nname = "web"\nurl = "{hub.url}"\nrevision = "main"\nprivate_redirects = true\n'
    )
    hub.store.faults["store"] = [faults.slow(0.1, 1 << 16)]
    with subprocess.Popen(command(recipe, root), stderr=subprocess.DEVNULL, env=os.environ) as first:
        wait_for(lambda: arrived(root)[1] > SIZE // 10)
        first.send_signal(signal.SIGKILL)
    partial, _ = arrived(root)
    assert partial is not None
    wait_for(lambda: not locks.is_locked(partial))  # the child notices that its parent is gone
    kept = arrived(root)[1]
    assert SIZE // 10 < kept < SIZE
    hub.store.log.clear()
    subprocess.run(command(recipe, root), check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert hub.store.sent("store") == SIZE - kept
    (copy,) = root.glob("sources/web/download-*/raw/a.bin")
    assert copy.read_bytes() == content
    assert arrived(root)[0] is None
