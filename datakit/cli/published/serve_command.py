"""Implements `datakit serve`, which shows a root in a browser."""

from __future__ import annotations

from datakit.cli.console import ENDED
from datakit.cli.parameters import Flag


def serve(
    root: str = "./data",
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: str | None = None,
    server_name: tuple[str, ...] = (),
    show_text: Flag = False,
) -> int:
    """Show a root in a browser: its datasets, its runs (also while they are active) and its training runs.

    Prints the address on stderr, and serves until it is interrupted. By default, only this machine can reach the
    server. If `--host` lets other machines reach it, browsers have to sign in with a token.

    Examples:
      datakit serve data
      datakit serve s3://bucket/data --port 0
      datakit serve data --host 0.0.0.0 --token-file token.txt

    Parameters
    ----------
    root
        The root given to `datakit run`.
    host
        Address to which the server is bound.
    port
        Port; 0 stands for any free port.
    token_file
        A file with a token of at least 32 characters that only you can read. Without it, DATAKIT_SERVE_TOKEN is used.
        If there is neither, and `--host` lets other machines reach the server, it makes a token and prints it.
    server_name
        A further host name under which browsers reach this server, for example that of a proxy. Can be repeated.
    show_text
        Let reports show some removed documents beside those that were kept. Without this option, no page holds text of
        any document.
    """
    from datakit.serve import Settings
    from datakit.serve import serve as serve_root

    try:
        serve_root(Settings(root, host, port, token_file, server_name, show_text))
    except (KeyboardInterrupt, SystemExit) as error:
        setattr(error, ENDED, "the server has ended")
        raise
    return 0
