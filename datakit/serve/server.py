"""Starts the server of `datakit serve`: opens the port, reads or makes the token, and runs until it is stopped.

Only this machine can reach the server unless another address is asked for. With another address, a token is needed: one
from a file or from the environment, which any number of browsers may use, or a random one, which is printed and works
once.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datakit import messages
from datakit.errors import UsageError
from datakit.regular_files import open_regular
from datakit.serve.access import SIGN_IN, Access
from datakit.serve.root import ServedRoot
from datakit.serve.streams import StreamLimits

if TYPE_CHECKING:
    import uvicorn

TOKEN_VARIABLE = "DATAKIT_SERVE_TOKEN"
SHORTEST_TOKEN = 32
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
MOST_CONNECTIONS = 64
MOST_HEADER_BYTES = 16 << 10
STOP_SECONDS = 3
UNREAD_MILLISECONDS = 30_000  # a browser that reads nothing for this long is disconnected


@dataclass(frozen=True)
class Settings:
    """The options of `datakit serve`. port: 0 stands for any free port. names: further host names of this server."""

    root: str
    host: str = "127.0.0.1"
    port: int = 8000
    token_file: str | None = None
    names: Sequence[str] = ()
    show_text: bool = False


def serve(settings: Settings) -> None:
    """Serve a root until the process is interrupted or terminated. Raises UsageError, NotFoundError."""
    require_libraries()
    import uvicorn

    from datakit.serve.app import Server, application

    root, access = ServedRoot(settings.root), access_of(settings)
    opened = _open(settings.host, settings.port)
    with opened:
        limits = StreamLimits()
        app = application(Server(root, access, settings.show_text, limits), hosts_of(settings))
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, date_header=True, lifespan="off",
            limit_concurrency=MOST_CONNECTIONS, h11_max_incomplete_event_size=MOST_HEADER_BYTES, http="h11",
            timeout_keep_alive=5, timeout_graceful_shutdown=STOP_SECONDS,
        )  # fmt: skip
        server = _announced_server(config, lambda: _announce(root, access, opened))
        limits.stopping = lambda: server.should_exit
        server.run(sockets=[opened])


def _announced_server(config: uvicorn.Config, announce: Callable[[], None]) -> uvicorn.Server:
    """Return a server that calls `announce` once it handles signals. If Ctrl-C came earlier, Python could warn about a
    coroutine that was never awaited.
    """
    import uvicorn

    class AnnouncedServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    return AnnouncedServer(config)


def require_libraries() -> None:
    """Raise UsageError if a library is missing."""
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "datakit serve needs more libraries; run pip install '.[serve]' in datakit's checkout"
        ) from error


def access_of(settings: Settings) -> Access:
    """Return an `Access` with the given token; if none is given, with a random one, or with none on loopback. Raises
    UsageError.
    """
    given = _token_from_file(settings.token_file) if settings.token_file else os.environ.get(TOKEN_VARIABLE, "")
    if given:
        if len(given) < SHORTEST_TOKEN:
            place = settings.token_file or TOKEN_VARIABLE
            raise UsageError(f"the token in {place} has fewer than {SHORTEST_TOKEN} characters; use a longer one")
        return Access(given)
    return Access() if is_loopback(settings.host) else Access(secrets.token_urlsafe(32), once=True)


def _token_from_file(path: str) -> str:
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.getuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
                raise UsageError(
                    f"--token-file {path}: other users have access to this file; make sure that you own it, and run "
                    f"chmod 600 {path}"
                )
            return file.read(4096).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: {error}; give a file that holds the token") from error


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that is bound to this host.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(settings: Settings) -> frozenset[str]:
    """Return the host names under which the server may be addressed, in lower case."""
    import psutil

    names = {settings.host, *settings.names}
    if not is_loopback(settings.host):
        names |= {socket.gethostname(), socket.getfqdn()}
    if settings.host in ("0.0.0.0", "::"):
        names |= {one.address.partition("%")[0] for found in psutil.net_if_addrs().values() for one in found}
    return LOOPBACK | {name.lower() for name in names}


def _open(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit it
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
    try:
        opened.bind((host, port))
        opened.listen(MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        opened.close()
        raise UsageError(f"{host} port {port}: {error}; choose another --port (0: any free port) or --host") from error
    return opened


def _announce(root: ServedRoot, access: Access, opened: socket.socket) -> None:
    host, port = opened.getsockname()[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    messages.show(f"serving {root.url} at {place} (Ctrl-C ends this)", event="serving", url=place)
    if access.token and access.once:
        messages.show(f"token for one browser, to be entered at {place.rstrip('/')}{SIGN_IN}: {access.token}")
    if not is_loopback(host):
        messages.show("warning: the connection is not encrypted; put a proxy with TLS in front, or use an SSH tunnel")
