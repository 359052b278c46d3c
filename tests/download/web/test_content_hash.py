"""Hashes of a content are those that Git, the Hub and datakit compute."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest as xxh3

from datakit.download.web import content_hash
from datakit.download.web.content_hash import hash_both
from datakit.errors import StorageError


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\0" * 3_000_000], ids=["empty", "small", "large"])
def test_both_hashes_in_one_pass(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_hash, "BUFFER_BYTES", max(5, len(content) // 7))
    (tmp_path / "a").write_bytes(content)
    assert hash_both(tmp_path / "a", "") == (xxh3(content), "")
    assert hash_both(tmp_path / "a", "sha256:x") == (xxh3(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
    git = subprocess.run(["git", "hash-object", "a"], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert hash_both(tmp_path / "a", "git-sha1:x")[1] == f"git-sha1:{git.stdout.strip()}"


def test_unknown_hash_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="the hash 'md5' is unknown"):
        hash_both(tmp_path / "a", "md5:x")
