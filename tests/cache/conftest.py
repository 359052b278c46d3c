"""Caches that several test files of this room read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from datakit.cache import layout
from tests.support.caches import SMALL_TEXTS, make_cache, random_cache


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of SMALL_TEXTS, two partitions a source; chunks of at most 64 tokens, up to 30 in a shard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_TOKENS", 64)
        return make_cache(tmp_path_factory.mktemp("small"), SMALL_TEXTS, bits=1)


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    """A copy of the small cache, to be altered."""
    return Path(shutil.copytree(small, tmp_path / "copy"))


@pytest.fixture(scope="session")
def random_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """Raw uint16 and compressed uint32 caches with their tokens: five shards each, one of them empty, and masks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_TOKENS", 1 << 14)
        return {
            name: random_cache(tmp_path_factory.mktemp(name), dtype, masks=True)
            for name, dtype in (("raw", np.uint16), ("compressed", np.uint32))
        }
