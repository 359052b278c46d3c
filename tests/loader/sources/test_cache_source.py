"""A token cache as a source: its tokens, document boundaries and identities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datakit.cache.reader import open_cache
from datakit.errors import LoaderError
from datakit.loader import TokenSource, open_source
from tests.support.faults.faulty_proxy import faulty_proxy
from tests.support.loader.mixture_files import cache
from tests.support.s3 import s3_root

__all__ = ["cache"]  # a fixture


def test_sources_are_parts_of_the_cache(cache: Path) -> None:
    opened = open_cache(str(cache))
    whole = open_source(str(cache))
    parts = [open_source(str(cache), name) for name in ("code", "web")]
    assert isinstance(whole, TokenSource)
    assert len(opened.shards) == 8
    assert whole.tokens == opened.tokens == sum(part.tokens for part in parts)
    assert np.array_equal(whole.read(0, whole.tokens), np.concatenate([part.read(0, part.tokens) for part in parts]))
    assert len({whole.identity, *(part.identity for part in parts)}) == 3
    assert open_source(str(cache), "web").identity == parts[1].identity


def test_borders_match_the_documents(cache: Path) -> None:
    source, opened = open_source(str(cache), "web"), open_cache(str(cache))
    lengths = [len(document.tokens) for document in opened.documents()]
    borders = np.concatenate([[0], np.cumsum(lengths)])
    skipped = opened.tokens - source.tokens
    borders = borders[borders >= skipped] - skipped
    assert np.array_equal(source.document_borders(0, source.tokens), borders)
    for start, stop in ((0, 1), (100, 101), (5000, 9000), (source.tokens - 1, source.tokens)):
        found = source.document_borders(start, stop)
        inside = borders[(borders > start) & (borders < stop)]
        assert found[0] <= start < found[1]
        assert found[-2] < stop <= found[-1]
        assert np.array_equal(found[1:-1], inside)


def test_borders_of_a_shard_cost_one_read(cache: Path) -> None:
    source = open_source(str(cache), "web")
    before = source.requests
    borders = source.document_borders(0, source.tokens)
    assert len(source.document_borders(0, 1)) == 2
    assert source.requests - before == 4, "one for each shard of the source"
    assert borders[-1] == source.tokens


@pytest.mark.soak
def test_borders_of_a_shard_cost_one_request(cache: Path) -> None:
    with s3_root(holding=str(cache)) as root, faulty_proxy(share=0) as proxy:
        source = open_source(root, "web")
        before = proxy.requests.copy()
        borders = source.document_borders(0, source.tokens)
        assert len(source.document_borders(0, 1)) == 2
        assert proxy.requests - before == {"GET": 4}
    local = open_source(str(cache), "web")
    assert np.array_equal(borders, local.document_borders(0, local.tokens))


def test_unknown_source_suggests_a_name(cache: Path) -> None:
    with pytest.raises(LoaderError, match="did you mean 'web'"):
        open_source(str(cache), "wep")
