"""Asks the Hub's API through `huggingface_hub`: which commit a revision stands for, and which files it has.

The library chooses the endpoint (`HF_ENDPOINT` names a mirror), the token (`HF_TOKEN`, or the one that `hf auth login`
has stored), the addresses and the pages. Its requests go through a transport of ours, which

    - goes only where `web/addresses.py` permits, and sends the token to the endpoint alone: the library itself would
      send it to any host that an answer names as the next page of a listing;
    - repeats what may pass (`web/patience.py`), since the library repeats only some of its requests, waits as long as a
      server asks for, and waits without an end for an answer;
    - reads at most MOST_BYTES of an answer.

Errors become errors of datakit, which say what to do. None of them contains the token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from datakit.download.hub.address import HubAddress
from datakit.download.web.addresses import Borders, ServerAddress
from datakit.download.web.client import PLAIN, TIMEOUT, GuardedTransport
from datakit.download.web.patience import BUSY, REAL, Clock, PassingError, Patience, asked_wait
from datakit.download.web.requests import described
from datakit.errors import DatakitError, NotFoundError, RootError, StorageError
from datakit.signed_urls import without_query

USUAL_ENDPOINT = "https://huggingface.co"
MOST_BYTES = 512 << 20  # of an answer; a repository has at most some 100,000 files, with 400 bytes for each
MOST_CODED_BYTES = 4 << 20  # of a compressed answer, which may grow a thousandfold
CODINGS = ("gzip", "deflate")
_session = threading.Lock()


def endpoint() -> str:
    """Return the address of the Hub or its mirror, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or USUAL_ENDPOINT).rstrip("/")


def borders(private: bool) -> Borders:
    """Return the limits on the addresses of requests to the Hub."""
    return Borders(ServerAddress.of(endpoint()), private)


def library() -> Any:
    """Import `huggingface_hub`. Raises RootError if it is not installed, or if HF_HUB_OFFLINE is set."""
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError as error:
        raise RootError(
            "hf:// needs huggingface_hub, which is not installed; run pip install '.[hf]' in datakit's checkout"
        ) from error
    if constants.HF_HUB_OFFLINE:
        raise RootError("HF_HUB_OFFLINE is set, so the Hub is not asked; unset it, or run with --offline")
    return huggingface_hub


class PatientTransport(httpx2.BaseTransport):
    """Reads whole answers, and repeats requests whose failures may pass. Raises StorageError if they do not."""

    def __init__(self, inner: httpx2.BaseTransport, clock: Clock) -> None:
        self._inner, self._clock = inner, clock

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request, several times if need be."""
        patience = Patience(without_query(str(request.url)), self._clock)
        while True:
            try:
                return self._answer(request)
            except PassingError as error:
                patience.wait(error)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = self._inner.handle_request(request)
            try:
                if response.status_code in BUSY:
                    wait = asked_wait(response.headers.get("retry-after"), self._clock)
                    raise PassingError(f"the server answered {response.status_code}", wait)
                data = _read(response, request)
            finally:
                response.close()
        except httpx2.TransportError as error:
            raise PassingError(described(error)) from error
        return httpx2.Response(
            response.status_code, headers=_plain_headers(response), stream=httpx2.ByteStream(data), request=request
        )

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()


def _read(response: httpx2.Response, request: httpx2.Request) -> bytes:
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    most = MOST_BYTES if coding == "identity" else MOST_CODED_BYTES if coding in CODINGS else 0
    pieces, length = [], 0
    assert isinstance(response.stream, httpx2.SyncByteStream)
    for piece in response.stream:
        pieces.append(piece)
        if (length := length + len(piece)) > most:
            raise StorageError(
                f"the answer of {without_query(str(request.url))} has more than {most:,} bytes (content coding: "
                f"{coding}); check HF_ENDPOINT, and whether a proxy changes answers"
            )
    return b"".join(pieces)


def _plain_headers(response: httpx2.Response) -> list[tuple[bytes, bytes]]:
    dropped = (b"transfer-encoding", b"content-length")
    return [(name, value) for name, value in response.headers.raw if name.lower() not in dropped]


@contextmanager
def hub_api(private: bool, clock: Clock = REAL) -> Iterator[Any]:
    """Provide an HfApi whose requests go through our transport. Only one thread can be in the block: the library has
    one client for the whole process, which has its usual form again after the block.
    """
    hub = library()
    from huggingface_hub.utils import _http  # has no public name for the usual form

    def client() -> httpx2.Client:
        transport = PatientTransport(GuardedTransport(borders(private)), clock)
        return httpx2.Client(
            transport=transport, headers=PLAIN, timeout=TIMEOUT, follow_redirects=True, trust_env=False
        )  # fmt: skip

    with _session:
        hub.set_client_factory(client)
        try:
            yield hub.HfApi(endpoint=endpoint())
        finally:
            hub.set_client_factory(_http.default_client_factory)


def request_headers() -> dict[str, str]:
    """Return the headers of a request for a file: they contain the token, if there is one."""
    library()
    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers(library_name="datakit"))


@contextmanager
def hub_errors(place: HubAddress) -> Iterator[None]:
    """Translate the errors of `huggingface_hub`. Raises RootError, NotFoundError or StorageError."""
    from huggingface_hub import errors

    try:
        yield
    except DatakitError:
        raise
    except errors.HfHubHTTPError as error:
        raise refusal(place, error.response.status_code, error.response.headers) from None
    except (errors.HFValidationError, httpx2.InvalidURL) as error:
        raise RootError(f"{place.url()}: {described(error)}; correct the URL") from error
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"the Hub's answer about {place.shown} cannot be understood ({type(error).__name__}); run again, and check "
            f"HF_ENDPOINT ({endpoint()})"
        ) from error


def refusal(place: HubAddress, status: int, headers: Any) -> DatakitError:
    """Return the error for an answer that refuses a request: it says what to check, and on which page."""
    code, page = headers.get("x-error-code", ""), place.page(endpoint())
    token = library().get_token()
    if code == "GatedRepo":
        if token is None:
            return RootError(
                f"{place.shown} is gated, and no token is set; accept its terms on {page}, and set HF_TOKEN to a token "
                f"of the same account ({endpoint()}/settings/tokens)"
            )
        return RootError(
            f"{place.shown} is gated, and the token's account has no access; accept its terms on {page} with the "
            "account of the token in HF_TOKEN, and let the token read gated repositories"
        )
    if code == "RevisionNotFound":
        return NotFoundError(f"{place.shown} has no revision {place.revision!r}; its branches are listed on {page}")
    if code == "EntryNotFound" or (status == 404 and not code and place.path):
        return NotFoundError(f"{place.shown} has no {place.path!r} at revision {place.revision}; see {page}")
    if code == "RepoNotFound" or status in (401, 404):
        if token is not None and status == 401:
            return RootError(
                f"the Hub did not accept the token for {place.shown}; renew HF_TOKEN ({endpoint()}/settings/tokens)"
            )
        advice = (
            "the account of the token in HF_TOKEN must have access to it"
            if token is not None
            else f"set HF_TOKEN to a token of an account with access ({endpoint()}/settings/tokens)"
        )
        return RootError(f"the Hub has no {place.shown}, or it is private; check the name; if it is private, {advice}")
    if status == 403:
        return RootError(
            f"access to {place.shown} was denied; check on {page} whether its terms must be accepted, and that the "
            "token in HF_TOKEN may read it"
        )
    return StorageError(f"the Hub answered {status} about {place.shown}; see {page}, and run again")


def read_api(place: HubAddress, private: bool, clock: Clock, ask: Callable[[Any], Any]) -> Any:
    """Return what `ask(api)` returns. Raises a DatakitError."""
    with hub_api(private, clock) as api, hub_errors(place):
        return ask(api)
