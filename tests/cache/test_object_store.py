"""Tests that caches and tokenizers in an object store work like local ones; one S3 server serves all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datakit.cache import layout
from datakit.cache.read_ahead import block_ranges
from datakit.cache.reader import open_cache
from datakit.errors import CorruptError
from datakit.interop.import_cache import import_cache
from datakit.interop.levanter import read_levanter
from datakit.storage import removal, urls
from datakit.storage.atomic import commit_bytes
from datakit.validate.intact import require_intact
from tests.support.caches import SMALL_TEXTS, clean, random_cache, reference_tokens, run, tokenize_step, trained, upload
from tests.support.partitions import contents
from tests.support.paths import REPOSITORY
from tests.support.s3 import s3_root
from tests.support.tokens.external_caches import assert_documents, consolidated, documents


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with s3_root() as root:
        yield root


def test_cache_on_s3_equals_the_local_one(store: str, small: Path, tmp_path: Path) -> None:
    """Written to and read from S3: the same bytes and tokens; a missing shard is an error, not zeros."""
    local = clean(tmp_path / "clean", SMALL_TEXTS, bits=1)
    tokenizer = small.parent / "tokenizer.json"
    root = f"{store}/same"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_TOKENS", 64)
        for path, data in contents(tmp_path / "clean").items():
            commit_bytes(data, f"{root}/clean/{path}")
        remote = [replace(one, directory=f"{root}/clean/{urls.name(one.directory)}") for one in local]
        made = tokenize_step(f"{root}/cache", remote, tokenizer)
        settled = made.inputs[-1]
        for path, data in contents(Path(settled.directory)).items():
            commit_bytes(data, f"{root}/contract/{path}")
        run(replace(made, inputs=(*remote, replace(settled, directory=f"{root}/contract"))))
        listed = {info.path: urls.read_bytes(info.url) for info in urls.listing(f"{root}/cache")}
        expected = contents(small)
        assert {name: data for name, data in listed.items() if name != "manifest.json"} == {
            name: data for name, data in expected.items() if name != "manifest.json"
        }
        cache = open_cache(f"{root}/cache")
        assert (cache.read(0, cache.tokens) == reference_tokens(small)).all()
        assert [document.id for document in cache.documents()] == [
            document.id for document in open_cache(str(small)).documents()
        ]
        assert require_intact(cache) == require_intact(open_cache(str(small)))
        removal.remove(f"{root}/cache/data/novels/shard-00000/c/0")
        with pytest.raises(CorruptError, match="missing or damaged"):
            open_cache(f"{root}/cache").read(0, 10)


def test_remote_tokenizer_is_loaded_without_a_thread(store: str, small: Path) -> None:
    """The fork server must have one thread, but the S3 driver starts another; so a helper process reads the file."""
    program = """
import sys
from pathlib import Path
from datakit.tokenize.encoders.tokenizer import load
tokenizer = load(sys.argv[1])
print(tokenizer.sha256, *[(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()])
"""
    commit_bytes((small / "tokenizer.json").read_bytes(), f"{store}/tokenizer.json")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, f"{store}/tokenizer.json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    sha256, *threads = done.stdout.split()
    assert sha256 == open_cache(str(small)).contract.tokenizer_sha256
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1


def test_remote_blocks_take_at_most_six_requests(store: str, tmp_path: Path) -> None:
    directory, expected = random_cache(tmp_path, np.uint16, [3 << 20])
    root = f"{store}/requests"
    upload(directory, root)
    cache = open_cache(root)
    ranges = block_ranges(len(expected))
    before = cache.requests
    for block, (start, stop) in zip(cache.blocks(ranges), ranges, strict=True):
        assert (block == expected[start:stop]).all()
    assert cache.requests - before <= 6 * len(ranges)
    found = cache.find(f"{0:016x}{7:016x}")
    assert found == 7
    assert cache.document(7).id == f"{0:016x}{7:016x}"


def test_remote_cache_is_imported_by_reference(store: str, tmp_path: Path) -> None:
    rows, tokenizer = documents(7, 40), tmp_path / "tokenizer.json"
    tokenizer.write_bytes(trained())
    root = f"{store}/imported"
    upload(consolidated(tmp_path / "old", rows), f"{root}/old")
    for target in (f"{root}/new", str(tmp_path / "new")):
        originals = read_levanter(f"{root}/old")
        import_cache(originals, target, str(tokenizer), layout="levanter", source="old", copy=False)
        assert_documents(open_cache(target), rows)
