"""A server may send datakit to public addresses only; the user may name any address."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from datakit.download.web import addresses
from datakit.download.web.addresses import Borders, ServerAddress, is_public
from datakit.errors import RootError, StorageError


def borders(url: str, private: bool = False) -> Borders:
    return Borders(ServerAddress.of(url), private)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in found]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)


def test_home_is_the_same_scheme_host_and_port() -> None:
    home = borders("https://Host.example/a")
    assert home.is_home("https://host.example:443/b?c")
    assert not any(map(home.is_home, ("http://host.example/", "https://host.example:444/", "https://x.host.example/")))
    home.check("https://host.example/other")


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/", "http://localhost/", "http://[::1]/", "http://10.0.0.7/",
                                 "http://169.254.169.254/latest/meta-data", "http://0x7f.1/", "http://2130706433/",
                                 "http://[::ffff:10.0.0.1]/", "http://0.0.0.0/"])  # fmt: skip
def test_private_addresses_are_refused_in_every_form(url: str) -> None:
    with pytest.raises((RootError, StorageError), match=r"is not public; set `private_redirects = true`|was not found"):
        borders("http://93.184.215.14/").check(url)
    borders("http://93.184.215.14/", private=True).check(url)
    borders(url).check(url)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/a", "gopher://host/"])
def test_other_schemes_are_never_followed(url: str) -> None:
    for private in (True, False):
        with pytest.raises(RootError, match=r"only http:// and https:// are followed|names no host"):
            borders("http://host.example/", private).check(url)


def test_https_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "93.184.215.14")
    with pytest.raises(RootError, match="anyone on the way could change the data"):
        borders("https://host.example/").check("http://cdn.example/a")
    borders("https://host.example/").check("https://cdn.example/a")
    borders("http://host.example/").check("https://cdn.example/a")


def test_every_address_of_a_name_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "93.184.215.14", "10.0.0.1")
    with pytest.raises(RootError, match=r"to https://cdn\.example/a\?\[redacted\], whose address 10\.0\.0\.1 is not"):
        borders("https://host.example/").check("https://cdn.example/a?X-Amz-Signature=1")


def test_urls_without_a_host_or_with_a_strange_port_are_named() -> None:
    for url in ("https:///a", "https://host:port/a", "https://[::1/a"):
        with pytest.raises(RootError, match=r"names no host|is not a valid URL"):
            ServerAddress.of(url)


def test_multicast_and_unspecified_addresses_are_not_public() -> None:
    assert not any(map(is_public, ("0.0.0.0", "224.0.0.251", "255.255.255.255", "fe80::1%eth0", "2002:7f00:1::")))
