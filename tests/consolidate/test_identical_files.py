"""A file is linked or copied with the same content, on a disk and in a store, and nothing is ever overwritten."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import xxhash

from datakit.consolidate.identical_files import commit_identical
from datakit.errors import CorruptError, DivergentOutputError
from datakit.storage import urls
from datakit.storage.atomic import commit_bytes

DATA = bytes(range(256)) * 1000
XXH3 = xxhash.xxh3_128_hexdigest(DATA)


def test_copy_has_the_content_and_is_made_once(root: str) -> None:
    original, url = urls.join(root, "a/part"), urls.join(root, "b/data/part")
    commit_bytes(DATA, original)
    for _ in range(2):
        commit_identical(original, url, len(DATA), XXH3)
        assert urls.read_bytes(url) == urls.read_bytes(original) == DATA


def test_different_content_is_refused_on_either_side(root: str) -> None:
    original, url = urls.join(root, "a/part"), urls.join(root, "b/part")
    commit_bytes(DATA, original)
    with pytest.raises(CorruptError, match=f"^{original} has .* the manifest of the normalize step states"):
        commit_identical(original, urls.join(root, "c/part"), len(DATA) + 1, XXH3)
    assert not urls.exists(urls.join(root, "c/part")), "a copy of a damaged file would be in the way of a sound one"
    commit_bytes(b"other", url)
    with pytest.raises(DivergentOutputError, match="exists with different content"):
        commit_identical(original, url, len(DATA), XXH3)
    assert urls.read_bytes(url) == b"other"


@pytest.mark.parametrize("reason", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_file_is_copied_where_it_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    original, url = str(tmp_path / "a"), str(tmp_path / "data" / "b")
    commit_bytes(DATA, original)
    link, calls = os.link, []

    def refuse(source: str, target: str) -> None:
        calls.append(source)
        if source == original:
            raise OSError(reason, os.strerror(reason))
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)
    commit_identical(original, url, len(DATA), XXH3)
    assert calls[0] == original and Path(url).read_bytes() == DATA == Path(original).read_bytes()
    assert not os.path.samefile(original, url)
