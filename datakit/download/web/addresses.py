"""Decides which addresses a server may send datakit to, by a redirect or by a link to the next page of a listing.

The user chooses the first address: it may be a machine in the user's own network. A server chooses the next ones. If it
could name any address, the author of a dataset could make this machine request pages of services that only this machine
can reach, and put the answers into documents. Therefore a request to another server (scheme, host and port) than that
of the first address may only use HTTP or HTTPS, never goes back from HTTPS to HTTP, and goes only to public addresses,
unless the source has `private_redirects = true`. No other server gets credentials.

The name of a host is resolved before the request, and the address of the open connection is checked before the answer
is read, since a name may be resolved to another address the second time. With a proxy, the proxy resolves names, so
only the first check is possible.
Cost: one look-up of a name per redirect to another host.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from datakit.errors import RootError, StorageError
from datakit.signed_urls import without_query

PORTS = {"http": 80, "https": 443}
OPTION = "set `private_redirects = true` for this source if the address is one of your own"


@dataclass(frozen=True)
class ServerAddress:
    """The scheme, the host and the port of a URL."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """Return the server of a URL. Raises RootError if the URL has no host, or a port that is not a number."""
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme.lower(), 0)
        except ValueError as error:
            raise RootError(f"{without_query(url)} is not a valid URL ({error}); correct it") from error
        if not parts.hostname:
            raise RootError(f"{without_query(url)} names no host; correct the URL")
        return cls(parts.scheme.lower(), parts.hostname.lower(), port)


@dataclass(frozen=True)
class Borders:
    """Limits on the addresses of requests that begin at a URL. home: the server of the URL that the user named.
    private: True if the source permits addresses that are not public.
    """

    home: ServerAddress
    private: bool = False

    def is_home(self, url: str) -> bool:
        """Return True if the URL leads to the server that the user named; only then may a request have credentials."""
        return ServerAddress.of(url) == self.home

    def check(self, url: str) -> None:
        """Raise RootError if a server may not send datakit to this URL."""
        place = ServerAddress.of(url)
        if place == self.home:
            return
        shown = without_query(url)
        if place.scheme not in PORTS:
            raise RootError(
                f"the server at {self.home.host} sent datakit to {shown}; only http:// and https:// are followed"
            )
        if self.home.scheme == "https" and place.scheme == "http" and not self.private:
            raise RootError(
                f"the server at {self.home.host} sent datakit from https:// to {shown}, where anyone on the way could "
                f"change the data; {OPTION}"
            )
        if not self.private:
            for address in _resolved(place):
                self.check_address(address, shown)

    def check_address(self, address: str, url: str) -> None:
        """Raise RootError if an address is not public, and the source does not permit such addresses."""
        if not self.private and not is_public(address):
            raise RootError(
                f"the server at {self.home.host} sent datakit to {without_query(url)}, whose address {address} is not "
                f"public; {OPTION}"
            )


def is_public(address: str) -> bool:
    """Return True if an IP address can be reached from everywhere.

    >>> [is_public(one) for one in ("93.184.215.14", "10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "fd00::1")]
    [True, False, False, False, False, False]
    >>> is_public("::ffff:127.0.0.1"), is_public("224.0.0.1"), is_public("2606:2800:21f:cb07::1")
    (False, False, True)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    if inner is not None:
        return is_public(str(inner))
    return found.is_global and not found.is_multicast


def _resolved(place: ServerAddress) -> list[str]:
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StorageError(f"the host {place.host} was not found ({error}); check the network") from error
    return [str(one[4][0]) for one in found]
