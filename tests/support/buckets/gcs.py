"""Runs a server with the JSON API of Google Cloud Storage for tests: gcp-storage-emulator in a separate process.

    with gcs_server("bucket") as address:        # "http://127.0.0.1:41234"
        ...

fake-gcs-server, which is more complete, is written in Go. What this emulator lacks: it puts all objects into one page
of a listing, answers every token, and its answers to requests for an object's bytes do not name the object's version.
The proxy of the tests (`proxy.py`) divides its listings into pages, as Google Cloud Storage does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SERVER = """
import logging, sys
from gcp_storage_emulator.server import create_server

logging.disable(logging.CRITICAL)
server = create_server("127.0.0.1", 0, True, sys.argv[1])
server.start()
print(server._api._httpd.server_port, flush=True)
sys.stdin.read()  # until the test process ends, even if it is killed
"""


@contextmanager
def gcs_server(bucket: str) -> Iterator[str]:
    """Start a server with an empty bucket, and yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, bucket],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdecimal(), "the server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate(timeout=10)
