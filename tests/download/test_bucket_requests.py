"""The number of requests for a source in a bucket: one per page and look, and one per file (two in GCS).

pytest tests/download/test_bucket_requests.py -m "" -s        # prints the numbers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from datakit.download.second_look import Look
from datakit.storage.buckets.listing import OTHER_PAGE_KEYS, PAGE_KEYS, objects_below
from tests.support.buckets.stores import KINDS, Store, bucket_store
from tests.support.normalize.sources import download_step, run_download

PLACES = 3  # requests that ask whether the URL is that of a file: two when it is listed, and one at the second look
REQUESTS_PER_FILE = {"s3": 1, "gs": 2}


@dataclass(frozen=True)
class Filled:
    """A bucket with a number of small files."""

    store: Store
    files: int


def filled(kind: str, files: int, folder: Path) -> Iterator[Filled]:
    for number in range(files):
        (folder / f"{number:05d}.txt").write_text(f"text {number}")
    with bucket_store(kind, holding=str(folder)) as store:
        yield Filled(store, files)


@pytest.fixture(scope="module", params=KINDS)
def two_pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    yield from filled(request.param, PAGE_KEYS + 100, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module", params=KINDS)
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    yield from filled(request.param, 5000, tmp_path_factory.mktemp("files"))


def test_a_listing_of_two_pages_is_complete(two_pages: Filled) -> None:
    found = objects_below(two_pages.store.url)
    assert [info.path for info in found] == [f"{number:05d}.txt" for number in range(two_pages.files)]
    assert [seen.page for seen in two_pages.store.proxy.of("list")] == [1, 2]


@pytest.mark.soak
def test_requests_for_five_thousand_files(many: Filled, tmp_path: Path) -> None:
    """In one process, since the number of requests does not depend on the number of workers."""
    store = many.store
    store.proxy.reset()
    step = download_step(store.url, str(tmp_path))
    output = run_download(replace(step, operations={**step.operations, "look": asdict(Look(store.url, (), ()))}))
    assert len(output.partitions) == many.files
    counts = Counter(seen.kind for seen in store.proxy.seen if seen.kind != "write")
    print(f"{store.kind}: {counts.total()} requests for {many.files} files: {dict(counts)}")
    assert counts["list"] == -(-many.files // PAGE_KEYS) - (-many.files // OTHER_PAGE_KEYS)
    assert counts["read"] == many.files
    assert counts["describe"] == PLACES + many.files * (REQUESTS_PER_FILE[store.kind] - 1)
