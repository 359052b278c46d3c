"""The annotator `urls` finds hosts as documented, and matches domains and parts of URLs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.lists.host_kernels import NONE, find_hosts
from datakit.annotate.lists.hosts import is_host, normal_host
from datakit.annotate.lists.urls_annotator import UrlsAnnotator
from datakit.errors import ColumnError
from datakit.text.string_buffers import string_buffers


def annotator_of(domains: dict[str, list[str]], substrings: dict[str, list[str]], column: str = "url") -> UrlsAnnotator:
    plain = [{name: pa.array(one, pa.large_string()) for name, one in lists.items()} for lists in (domains, substrings)]
    return UrlsAnnotator(1, {"column": column}, *plain)


def counts_of(annotator: UrlsAnnotator, urls: list[str | None], name: str) -> list[int | None]:
    found = annotator.annotate(pa.record_batch({"url": pa.array(urls, pa.string())}))
    found.validate(full=True)
    return found[name].to_pylist()


def host_of(url: str) -> str | None:
    """Return the host that is found in a URL, in normal form, or None."""
    data, offsets = string_buffers(pa.array([url], pa.large_string()))
    starts, stops, kinds = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.uint8)
    find_hosts(data, offsets, starts, stops, kinds)
    host = normal_host(data[starts[0] : stops[0]].tobytes().decode())
    return host if kinds[0] != NONE and is_host(host) else None


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.COM/a", "example.com"),
        ("  https://example.com:8080/a ", "example.com"),
        ("https://user:pass@example.com@evil.org/a@b", "evil.org"),
        ("https://example.com?x=http://evil.org", "example.com"),
        ("https://example.com#@evil.org", "example.com"),
        ("https://example.com\\@evil.org", "example.com"),
        ("//example.com/a", "example.com"),
        ("example.com/a//b", "example.com"),
        ("example.com:80", "example.com"),
        ("example.com./a", "example.com"),
        ("https://example.com.:443/", "example.com"),
        ("ftp+x-1://example.com", "example.com"),
        ("http:\\\\example.com\\a", "example.com"),
        ("https://Bücher.example/a", "xn--bcher-kva.example"),
        ("https://b%C3%BCcher.example/a", "xn--bcher-kva.example"),
        ("https://XN--BCHER-KVA.example/a", "xn--bcher-kva.example"),
        ("https://日本。jp", "xn--wgv71a.jp"),
        ("https://faß.de", "xn--fa-hia.de"),
        ("https://💩.la", "xn--ls8h.la"),
        ("http://[2001:DB8::1]:80/", "[2001:db8::1]"),
        ("http://127.0.0.1:80/", "127.0.0.1"),
        ("http://my_host/", "my_host"),
        ("http:///a", None),
        ("http://", None),
        ("", None),
        ("localhost:8080/a", "localhost"),
        (" LocalHost:80", "localhost"),
        ("[::1]:80/a", "[::1]"),
        ("tel://phone:80", "phone"),
        ("tel:5551234", None),
        ("tel:5551234/a.b", None),
        ("localhosts:80", None),
        ("localhost:", None),
        ("mailto:someone@example.com", None),
        ("http:/example.com", None),
        ("http://a..b/", None),
        ("http://.example.com/", None),
        ("http://exa mple.com/", None),
        ("http://%FF.com/", None),
        ("http://[::1/", None),
        ("/path/only", None),
        ("not a url", None),
    ],
)
def test_host(url: str, host: str | None) -> None:
    assert host_of(url) == host


@given(st.from_regex(r"https?://([a-z]{1,3}(:[a-z]*)?@)?([a-zA-Z0-9_-]{1,5}\.){0,3}[a-z]{1,3}(:[0-9]{0,4})?([/?#][a-z:@./]*)?",
                     fullmatch=True))  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_host_of_a_plain_url_is_that_of_the_standard_library(url: str) -> None:
    assert host_of(url) == urlsplit(url).hostname


@given(st.text())
@settings(deadline=None, max_examples=300)
def test_every_url_has_a_host_or_none(url: str) -> None:
    text = url.encode("utf-8", "replace").decode()
    host = host_of(text)
    assert host is None or is_host(host)
    annotator = annotator_of({"x": [host or "example.com"]}, {})
    assert counts_of(annotator, [text], "x") == [None if host is None else 1]


@pytest.mark.parametrize(
    ("entry", "url", "count"),
    [
        ("example.com", "https://example.com/", 1),
        ("example.com", "https://a.b.EXAMPLE.com./", 1),
        ("example.com", "https://notexample.com/", 0),
        ("example.com", "https://example.com.evil.org/", 0),
        ("example.com", "https://evil.org/example.com", 0),
        ("com", "https://example.com/", 1),
        ("a.example.com", "https://example.com/", 0),
    ],
)
def test_domain_stands_for_itself_and_its_subdomains(entry: str, url: str, count: int) -> None:
    assert counts_of(annotator_of({"x": [entry]}, {}), [url], "x") == [count]


def test_lists_are_counted_apart() -> None:
    domains = {"a": ["example.com", "www.example.com", "org"], "b": ["example.com"]}
    annotator = annotator_of(domains, {"c": ["/adult/", "b"], "d": ["ü"]})
    urls = ["https://www.example.com/Adult/b/b", None, "/adult/", "https://bÜ.org"]
    assert counts_of(annotator, urls, "a") == [2, None, None, 1]
    assert counts_of(annotator, urls, "b") == [1, None, None, 0]
    assert counts_of(annotator, urls, "c") == [2, None, 1, 1]
    assert counts_of(annotator, urls, "d") == [0, None, 0, 1]
    table = pa.Table.from_batches([annotator.annotate(pa.record_batch({"url": pa.array(urls, pa.string())}))])
    assert annotator.counts(table) == {
        "a": 2, "a_unknown": 2, "b": 1, "b_unknown": 2, "c": 3, "c_unknown": 1, "d": 1, "d_unknown": 1,
    }  # fmt: skip


@given(st.lists(st.from_regex(r"(x\.)?[ab]{1,2}\.[ab]", fullmatch=True), min_size=1, unique=True),
       st.lists(st.from_regex(r"(x\.){0,2}[ab]{1,2}\.[ab]", fullmatch=True), min_size=1))  # fmt: skip
@settings(deadline=None, max_examples=200)
def test_domains_are_those_that_a_search_for_all_parents_finds(entries: list[str], hosts: list[str]) -> None:
    found = counts_of(annotator_of({"x": entries}, {}), [f"http://{host}" for host in hosts], "x")
    assert found == [sum(host == entry or host.endswith(f".{entry}") for entry in entries) for host in hosts]


@pytest.mark.parametrize("kind", [pa.null(), pa.large_string(), pa.string()])
def test_column_without_urls_gives_nulls(kind: Any) -> None:
    found = annotator_of({"x": ["a"]}, {"y": ["a"]}).annotate(pa.record_batch({"url": pa.array([None, None], kind)}))
    assert found.to_pylist() == [{"x": None, "y": None}] * 2


def test_column_of_another_type_is_refused() -> None:
    with pytest.raises(ColumnError, match="'url' has the type int64; URLs must be strings"):
        annotator_of({"x": ["a"]}, {}).annotate(pa.record_batch({"url": pa.array([1])}))
