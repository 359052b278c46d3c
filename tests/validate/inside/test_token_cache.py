"""Tests that validation finds every altered, missing or contradictory file of a token cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.errors import CorruptError
from datakit.storage import manifest as manifests
from datakit.storage.atomic import commit_bytes, hash_file
from datakit.storage.manifest import read_manifest
from datakit.validate.intact import require_intact
from tests.support.caches import SMALL_TEXTS, make_cache, random_cache


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("intact"), SMALL_TEXTS, bits=1)


@pytest.fixture
def copied(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "copy"))


def test_altered_and_missing_files_are_found(copied: Path) -> None:
    files = [
        "data/novels/shard-00000/c/0",
        "data/novels/shard-00000/zarr.json",
        "data/laws/shard-00001.docs.parquet",
        "data/laws/shard-00001.lengths",
        "tokenizer.json",
    ]
    for name in files:
        whole = (copied / name).read_bytes()
        (copied / name).write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        with pytest.raises(CorruptError, match=name):
            require_intact(open_cache(str(copied)))
        (copied / name).unlink()
        with pytest.raises(CorruptError, match=name):
            require_intact(open_cache(str(copied)))
        (copied / name).write_bytes(whole)
    require_intact(open_cache(str(copied)))


def test_lengths_that_contradict_the_documents_are_found(copied: Path) -> None:
    """Even if the manifest has the checksum of the altered file."""
    url = copied / "data" / "laws" / "shard-00000.lengths"
    index = next(shard.index for shard in open_cache(str(copied)).shards if shard.path == "data/laws/shard-00000")
    lengths = np.fromfile(url, "<u4")
    shifted = lengths + np.array([1, *[0] * (len(lengths) - 2), -1], "<i4").astype("<u4")
    for altered, refused in ((lengths[:-1], "has .* bytes"), (lengths + 1, "tokens in total"), (shifted, None)):
        url.unlink()
        commit_bytes(altered.astype("<u4").tobytes(), str(url))
        put_checksum(copied, index)
        cache = open_cache(str(copied))
        with pytest.raises(CorruptError, match=r"shard-00000\.lengths (has|lists|and .*docs\.parquet list different)"):
            require_intact(cache)
        if refused is None:
            assert (cache.document_lengths(index) == altered).all(), "the sums agree: only validation sees it"
        else:
            with pytest.raises(CorruptError, match=refused):
                cache.document_starts(index)


def put_checksum(directory: Path, index: int) -> None:
    """Put the checksum of a shard's altered lengths into the manifest."""
    manifest = read_manifest(str(directory))
    place = directory / f"{manifest.partitions[index].path}.lengths"
    manifest.details["shards"][index]["lengths_xxh3"] = hash_file(place)[0]
    (directory / "manifest.json").write_bytes(b"".join(manifests.pieces(manifests.sealed(manifest))))


def test_damaged_loss_mask_is_found(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [100, 5000], masks=True)
    require_intact(open_cache(str(directory)))
    mask = directory / "data/web/shard-00001.loss_mask/c/0"
    mask.write_bytes(mask.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"shard-00001.loss_mask/c/0 has \d+ bytes"):
        require_intact(open_cache(str(directory)))
