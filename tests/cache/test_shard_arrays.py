"""Tests of shards' arrays: number of requests, damaged files, loss masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.errors import CorruptError
from tests.support.caches import (
    random_cache,
)


def test_raw_block_is_one_request_compressed_at_most_six(tmp_path: Path) -> None:
    for name, dtype, most in (("raw", np.uint16, 1), ("compressed", np.uint32, 6)):
        directory, expected = random_cache(tmp_path / name, dtype, [3 << 20])
        cache = open_cache(str(directory))
        cache.read(0, 1)  # the shard's index
        for start in (0, 1_000_000, 2_097_151):
            before = cache.requests
            assert (cache.read(start, start + (1 << 20)) == expected[start : start + (1 << 20)]).all()
            assert cache.requests - before <= most


def test_missing_or_resized_data_file_is_refused(copied: Path) -> None:
    data = copied / "data" / "novels" / "shard-00000" / "c" / "0"
    whole = data.read_bytes()
    for altered in (whole[:-1], whole + b"x", None):
        data.unlink()
        if altered is not None:
            data.write_bytes(altered)
        with pytest.raises(CorruptError, match=r"shard-00000/c/0 (has|is missing)"):
            open_cache(str(copied)).read(0, 10)
        data.write_bytes(whole)
    assert len(open_cache(str(copied)).read(0, 10)) == 10


def test_altered_compressed_shard_is_an_error(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint32, [50_000])
    data = directory / "data/web/shard-00000/c/0"
    whole = data.read_bytes()
    data.write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
    with pytest.raises(CorruptError, match=r"shard-00000 is missing or damaged \(.*\); run `datakit validate`"):
        open_cache(str(directory)).read(0, 10)


def test_loss_masks_are_read_like_tokens(random_caches: dict[str, tuple[Path, np.ndarray]]) -> None:
    for directory, tokens in random_caches.values():
        cache = open_cache(str(directory))
        assert cache.has_loss_mask
        expected = np.ones(len(tokens), bool)
        for number, shard in enumerate(cache.shards):
            if number % 2:
                place = slice(shard.token_start, shard.token_start + shard.tokens)
                expected[place] = tokens[place] % 3 == 0
        for start, stop in [(0, len(tokens)), (69_990, 70_010), (5, 5), (100_000, 230_000)]:
            found = cache.read_loss_mask(start, stop)
            assert found.dtype == bool
            assert (found == expected[start:stop]).all()
        with pytest.raises(IndexError):
            cache.read_loss_mask(0, len(tokens) + 1)


def test_resized_loss_mask_is_refused(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [100, 5000], masks=True)
    mask = directory / "data/web/shard-00001.loss_mask/c/0"
    mask.write_bytes(mask.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"shard-00001.loss_mask/c/0 has"):
        open_cache(str(directory)).read_loss_mask(0, 200)
