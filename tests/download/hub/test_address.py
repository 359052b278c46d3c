"""Addresses on the Hub are split into repository, revision and path, or refused."""

from __future__ import annotations

import pytest

from datakit.download.hub.address import HubAddress, parse
from datakit.errors import RootError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://datasets/a/b", HubAddress("dataset", "a/b")),
        ("hf://datasets/a/b/", HubAddress("dataset", "a/b")),
        ("hf://datasets/a/b@main/c/*.gz", HubAddress("dataset", "a/b", "main", "c/*.gz")),
        ("hf://datasets/a/b@refs/convert/parquet/c", HubAddress("dataset", "a/b", "refs/convert/parquet", "c")),
        ("hf://datasets/a/b@refs/pr/7", HubAddress("dataset", "a/b", "refs/pr/7")),
        ("hf://datasets/a/b@feature%2Fx/c/d", HubAddress("dataset", "a/b", "feature/x", "c/d")),
        ("hf://spaces/a/b/c", HubAddress("space", "a/b", "", "c")),
        ("hf://a/b/c@d", HubAddress("model", "a/b", "", "c@d")),
    ],
)
def test_address_is_split_and_composed(url: str, expected: HubAddress) -> None:
    assert parse(url) == expected
    assert parse(expected.url()) == expected


@pytest.mark.parametrize("url", ["hf://datasets/a", "hf://", "hf://datasets/../b", "hf://datasets/a/b@", "hf:///a/b"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(RootError, match=r"is not an address on the Hub; write hf://datasets/ORGANIZATION/NAME@REV"):
        parse(url)


def test_page_is_where_a_user_accepts_terms() -> None:
    assert parse("hf://datasets/a/b").page("https://huggingface.co") == "https://huggingface.co/datasets/a/b"
    assert parse("hf://a/b").page("https://mirror") == "https://mirror/a/b"
