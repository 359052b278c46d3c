"""A listing of a bucket is complete and right, or it is refused."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.errors import StorageError
from datakit.storage.buckets import listing
from datakit.storage.buckets.answers import Description, ObjectBytes, Page
from datakit.storage.buckets.listing import describe, is_bucket, objects_below
from tests.support.buckets import orders
from tests.support.buckets.orders import lists
from tests.support.buckets.stores import Store

KEYS = [
    *(f"{number:02d}.txt" for number in range(9)), "a//b", "odd/é ü#?%20.txt", "x.txt", "x.txt/y", ".hidden",
]  # fmt: skip


@pytest.fixture(scope="module")
def filled_store(shared_store: Store) -> Store:
    """A bucket that holds KEYS and the marker of a folder; the size of each object is the length of its key."""
    shared_store.put_all({key: key.encode() for key in KEYS} | {"marker/": b""})
    return shared_store


@pytest.fixture
def store(filled_store: Store) -> Store:
    """The bucket; its proxy has seen no request yet."""
    filled_store.proxy.reset()
    return filled_store


def test_only_urls_of_known_stores_are_buckets() -> None:
    assert [is_bucket(url) for url in ("s3://b", "gs://b", "gcs://b", "hf://b", "memory://b", "/s3://b")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("page_keys", [1, 4, 1000])
def test_every_object_is_listed_whatever_the_pages(store: Store, page_keys: int) -> None:
    found = objects_below(store.url, page_keys=page_keys)
    assert sorted(info.path for info in found) == sorted(KEYS)
    assert {info.path: info.size for info in found} == {key: len(key.encode()) for key in KEYS}
    assert len({info.checksum for info in found}) == len(KEYS)
    pages = store.proxy.of("list")
    assert [seen.page for seen in pages] == list(range(1, len(pages) + 1))
    assert len(pages) == -(-(len(KEYS) + 1) // page_keys)


def test_an_object_is_described_and_a_missing_one_is_none(store: Store) -> None:
    found = describe(f"{store.url}/x.txt")
    assert found is not None
    assert (found.path, found.size) == ("x.txt", 5)
    assert describe(f"{store.url}/absent") is None
    assert describe(store.url.removesuffix("/source")) is None
    assert objects_below(f"{store.url}/absent") == []
    assert objects_below(f"{store.kind}://no-such-bucket/folder") == []


PASSING = {
    "busy": orders.refused(503),
    "cut": orders.cut_after(100),
    "longer than it is": orders.stating_length(7),
    "shorter than it is": orders.stating_length(-7),
    "incomplete": orders.truncated(0.6),
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_passing_fault_loses_nothing(store: Store, fault: str) -> None:
    if store.kind == "gs" and fault in ("shorter than it is", "incomplete"):
        pytest.skip("gcsfs does not repeat a request whose answer is not JSON; the next test shows the error")
    store.proxy.order(lists(page=2), PASSING[fault])
    assert sorted(info.path for info in objects_below(store.url, page_keys=6)) == sorted(KEYS)
    assert [seen.page for seen in store.proxy.of("list")] == [1, 2, 2, 3]


def test_an_answer_that_cannot_be_parsed_is_an_error(store: Store) -> None:
    store.proxy.order(lists(page=2), orders.truncated(0.6), times=100)
    with pytest.raises(
        StorageError, match=r"Internal Server Error|Unable to parse response|is incomplete or not JSON; run again"
    ):
        objects_below(store.url, page_keys=6)


WRONG = {
    "twice": (orders.with_object_twice(1), r"page 2 lists source/\S+ a second time"),
    "elsewhere": (orders.with_text("source/06.txt", "sauce/06.txt"), r"has the key sauce/06\.txt, which is not in the"),
    "climbing": (orders.with_text("source/06.txt", "../etc/passwd"), r"the key \.\./etc/passwd, which is not in the"),
}
WRONG_IN_S3 = {
    "an object is left out": (orders.without_object(1), "page 2 states 5 objects, but has 4"),
    "the token is missing": (orders.without_token(), "page 2 says that another page follows, but does not say which"),
    "it does not say whether more follows": (
        orders.with_text("<IsTruncated>true</IsTruncated>", ""), "page 2 does not say whether another page follows",
    ),
    "no size": (orders.with_text("Size>", "Sighs>"), r"no size of source/\S+ in bucket shelf"),
}  # fmt: skip


@pytest.mark.parametrize("fault", [*WRONG, *WRONG_IN_S3])
def test_a_listing_that_contradicts_itself_is_refused(store: Store, fault: str) -> None:
    if fault in WRONG_IN_S3 and store.kind != "s3":
        pytest.skip("pages of Google Cloud Storage state neither a number nor an end; the second look finds it")
    change, words = {**WRONG, **WRONG_IN_S3}[fault]
    store.proxy.order(lists(page=2), change, times=100)
    with pytest.raises(StorageError, match=rf"{words}.*; run again; if the error stays, ask"):
        objects_below(store.url, page_keys=5)


def test_pages_that_go_round_in_circles_are_refused(store: Store) -> None:
    objects_below(store.url, page_keys=5)
    second = store.proxy.of("list")[1].query
    store.proxy.reset()
    back = orders.leading_back(second.get("continuation-token") or second["pageToken"])
    store.proxy.order(lists(page=2), back, times=100)
    with pytest.raises(StorageError, match=r"a second time|leads back to an earlier page"):
        objects_below(store.url, page_keys=5)
    assert len(store.proxy.of("list")) < 5


class Pages:
    """A bucket whose pages are given."""

    def __init__(self, pages: list[Page]) -> None:
        self._pages = {"": pages[0]} | {str(number): page for number, page in enumerate(pages) if number}

    def page(self, prefix: str, keys: int, token: str) -> Page:
        return self._pages[token]

    def describe(self, key: str) -> Description | None:
        raise NotImplementedError

    def read(self, key: str, start: int) -> AbstractContextManager[ObjectBytes]:
        raise NotImplementedError


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.sampled_from(["none", "count", "token", "end", "twice", "circle", "outside"]),
    st.integers(0, 5),
)
def test_whatever_the_pages_are_the_listing_is_right_or_refused(sizes: list[int], fault: str, where: int) -> None:
    """Empty pages are legal; a fault that a listing shows is never taken for its end."""
    where %= len(sizes)
    pages, key = list[Page](), 0
    for number, size in enumerate(sizes):
        objects = tuple(Description(f"s/{key + one}", one, "v") for one in range(size))
        last = number == len(sizes) - 1
        pages.append(Page(objects, "" if last else str(number + 1), not last, size))
        key += size
    whole = [one for page in pages for one in page.objects]
    page, extra = pages[where], Description("t/0", 0, "v")
    token, more, objects = page.token, page.more, page.objects
    if fault == "token":
        token, more = "", True
    elif fault == "end":
        more = None
    elif fault == "twice" and whole:
        objects = (*objects, whole[0])
    elif fault == "circle":
        token, more = str(where) if where else "0", True
    elif fault == "outside":
        objects = (*objects, extra)
    count = page.count if fault == "count" else len(objects)
    objects = objects[1:] if fault == "count" else objects
    pages[where] = Page(objects, token, more, count)
    if fault == "circle":
        pages = [*pages, *pages] if where == 0 else pages
    try:
        found = list(listing._objects(Pages(pages), "s/", "s3://b/s", 3))
    except (StorageError, KeyError) as error:
        assert isinstance(error, StorageError) or fault == "circle"
        assert fault != "none"
        return
    assert found == whole
