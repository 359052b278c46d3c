"""A bucket in each kind of store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.buckets.stores import KINDS, Store, bucket_store


@pytest.fixture(scope="module", params=KINDS)
def shared_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty bucket behind a proxy, for all tests of a module."""
    with bucket_store(request.param) as store:
        yield store
