"""Tests that a manifest which contradicts itself, or is not a cache's, is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from datakit.cache.layout import read_details
from datakit.cache.reader import Cache, open_cache
from datakit.errors import CorruptError, NewerFormatError, UsageError
from datakit.storage.manifest import read_manifest, totals_of
from tests.support.caches import random_cache
from tests.support.paths import FIXTURES


def test_other_stages_output_is_refused(small: Path) -> None:
    manifest = msgspec.structs.replace(read_manifest(str(small)), stage="consolidate")
    with pytest.raises(UsageError, match="output of stage 'consolidate'"):
        Cache("somewhere", manifest)


def test_altered_manifest_is_refused(small: Path) -> None:
    manifest = read_manifest(str(small))
    first = manifest.partitions[0]
    longer = [msgspec.structs.replace(first, tokens=(first.tokens or 0) + 1), *manifest.partitions[1:]]
    for altered in (
        msgspec.structs.replace(manifest, partitions=longer),
        msgspec.structs.replace(manifest, partitions=longer, totals=totals_of(longer)),
        msgspec.structs.replace(manifest, partitions=manifest.partitions[1:]),
    ):
        with pytest.raises(CorruptError, match="two values in its manifest disagree"):
            Cache("somewhere", altered)
    with pytest.raises(CorruptError, match="does not describe a token cache"):
        Cache("somewhere", msgspec.structs.replace(manifest, details={"form": 1}))
    other = msgspec.structs.replace(manifest, details={**manifest.details, "format": "datakit.other/1"})
    with pytest.raises(CorruptError, match=r"'datakit\.other/1'"):
        Cache("somewhere", other)


def test_disagreeing_sums_are_named(small: Path) -> None:
    manifest = read_manifest(str(small))
    details = {**manifest.details, "lengths": {"2": 1}}
    with pytest.raises(CorruptError, match=r"documents in the shards and in the histogram of lengths: 211 and 1"):
        Cache("somewhere", msgspec.structs.replace(manifest, details=details))


def test_altered_source_or_loss_mask_is_refused(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [100, 5000, 300], masks=True)
    manifest = read_manifest(str(directory))
    renamed = [msgspec.structs.replace(manifest.partitions[0], source="other"), *manifest.partitions[1:]]
    with pytest.raises(CorruptError, match="shards, documents, tokens, bytes of text and targets of 'other'"):
        Cache("somewhere", msgspec.structs.replace(manifest, partitions=renamed))
    shards = [{**entry, "loss_mask": None} for entry in manifest.details["shards"]]
    with pytest.raises(CorruptError, match="and targets of 'web'"):
        Cache("somewhere", msgspec.structs.replace(manifest, details={**manifest.details, "shards": shards}))
    with pytest.raises(CorruptError, match="loss masks of the shards and their form: True and False"):
        Cache("somewhere", msgspec.structs.replace(manifest, details={**manifest.details, "loss_mask": None}))


def test_older_format_is_refused_with_next_step() -> None:
    """`datakit.cache/1` had no lengths files."""
    words = r"'datakit\.cache/1', but this version of datakit reads 'datakit\.cache/2'; make the cache again"
    with pytest.raises(CorruptError, match=words):
        open_cache(str(FIXTURES / "cache-1"))


def test_newer_format_is_refused_and_kept() -> None:
    manifest = read_manifest(str(FIXTURES / "cache-1"))
    newer = msgspec.structs.replace(manifest, details={"format": "datakit.cache/3", "other": 1})
    with pytest.raises(NewerFormatError, match=r"^somewhere/manifest\.json was written by a newer version of datakit"):
        read_details("somewhere", newer)
