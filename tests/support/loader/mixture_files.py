"""A mixture file over a small token cache with two sources, for tests of the file, its packing and its commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datakit.cli.app import main
from datakit.pipeline import packing_stage
from tests.support.caches import make_cache
from tests.support.partitions import words

MIXTURE = """
sequence_length = [[0, 64], [40, 128]]
batch_size = 8
seed = 5
steps = 60

[components.web]
cache = "cache"
source = "web"
validation_tokens = 2_000

[components.code]
cache = "cache"
source = "code"
packing = { too_long = "split", max_documents = 6 }
max_epochs = 40
validation_tokens = 1_000
shuffle = { block_tokens = 512 }

[[stages]]
weights = { web = 0.9, code = 0.1 }

[[stages]]
start_step = 30
weights = { web = 1, code = 1 }
"""
BLOCKS_A_TASK = 7


def two_source_cache(folder: Path) -> Path:
    """A cache of the sources `code` and `web`, in four shards each; every document ends with the end-of-text token."""
    texts = {
        name: [words(seed * 1000 + i, 1, 5 + i % 60)[0] for i in range(300)]
        for seed, name in enumerate(("code", "web"))
    }
    return make_cache(folder, texts, bits=2)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two-source cache, made once for all modules; tests must not change it."""
    folder = tmp_path_factory.getbasetemp() / "two-source-cache"
    return folder / "cache" if folder.exists() else two_source_cache(folder)


@pytest.fixture
def mixture(cache: Path, tmp_path: Path) -> Path:
    """The mixture's file, next to a link to the cache."""
    (tmp_path / "cache").symlink_to(cache)
    path = tmp_path / "mix.toml"
    path.write_text(MIXTURE)
    return path


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan small packing tasks. Children do not need the patch: their arguments say which blocks to count."""
    monkeypatch.setattr(packing_stage, "BLOCKS_A_TASK", BLOCKS_A_TASK)


def changed(path: Path, old: str, new: str) -> Path:
    """A copy of the mixture file, next to it, with one change."""
    assert old in MIXTURE
    copy = path.with_name("changed.toml")
    copy.write_text(MIXTURE.replace(old, new))
    return copy


def unfinished_copy(cache: Path, folder: Path) -> Path:
    """A copy of the cache without its manifest."""
    copy = folder / "unfinished"
    shutil.copytree(cache, copy)
    (copy / "manifest.json").unlink()
    return copy


def called(*arguments: str) -> int:
    """The exit code of `datakit ...`, run in this process."""
    try:
        return main(arguments)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code
