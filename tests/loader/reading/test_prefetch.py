"""Background threads end with the iterator."""

from __future__ import annotations

import threading

import pytest

from datakit.loader import Loader
from tests.support.loader.mixtures import watched_mixture


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
