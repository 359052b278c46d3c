"""Background threads end with the iterator."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from datakit.loader import Loader
from tests.support.loader.mixtures import watched_mixture
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize("ahead", [0, 2])
def test_closing_leaves_no_thread(ahead: int) -> None:
    def ours() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("datakit-loader")]

    _, mixture = watched_mixture()
    with Loader(mixture, batches_ahead=ahead) as loader:
        iterator = loader.iterate()
        next(iterator)
        assert ours()
        iterator.close()
    assert not ours()


def test_failing_loop_does_not_keep_the_process_alive() -> None:
    """The traceback holds the open iterator, so its threads are joined while reads are still in flight."""
    code = (
        "from tests.support.loader.mixtures import watched_mixture\n"
        "from datakit.loader import Loader\n"
        "for batch in Loader(watched_mixture()[1], batches_ahead=3).iterate():\n"
        "    raise ValueError('stop here')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, timeout=300, check=False)
    assert b"stop here" in done.stderr
