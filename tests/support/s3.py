"""Runs a real S3 server over HTTP for tests: moto in a separate process.

    with s3_root() as root:        # "s3://datakit-test/root"; AWS_* point to the server inside the block
        commit_bytes(b"...", urls.join(root, "file"))

Writes go through one at a time, because moto checks a conditional PUT and then writes, where S3 does both atomically.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from datakit.engine.ray_backend.node_environment import FORWARD

SERVER = """
import logging, sys, threading, time
from pathlib import Path
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
application, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

latency, (bucket, _, prefix), folder = float(sys.argv[1]), sys.argv[2].partition("/"), sys.argv[3]
store = s3_backends["123456789012"]["aws"]
store.create_bucket(bucket, "us-east-1")
for path in filter(Path.is_file, Path(folder).rglob("*") if folder else ()):
    store.put_object(bucket, f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

def one_write_at_a_time(environ, start_response):
    if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
        time.sleep(latency)
    if environ["REQUEST_METHOD"] in ("PUT", "POST"):
        with lock:
            return application(environ, start_response)
    return application(environ, start_response)

server = make_server("127.0.0.1", 0, one_write_at_a_time, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()  # until the test process ends, even if it is killed
"""


@contextmanager
def s3_server(bucket: str, prefix: str, latency: float = 0.0, holding: str = "") -> Iterator[dict[str, str]]:
    """Start a server that delays reads by `latency` seconds; yield the environment variables that point to it.

    holding: a local directory whose files are below `prefix` from the start; uploading them would take minutes.
    """
    command = [sys.executable, "-c", SERVER, str(latency), f"{bucket}/{prefix}", holding]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the S3 server did not start"
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.communicate(timeout=10)


@contextmanager
def s3_root(bucket: str = "datakit-test", latency: float = 0.0, holding: str = "") -> Iterator[str]:
    """Yield an empty `s3://bucket/prefix` on its own server, with the environment set to reach it. See s3_server."""
    import s3fs

    prefix = f"root-{uuid.uuid4().hex[:8]}"
    with s3_server(bucket, prefix, latency, holding) as variables, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv(FORWARD, "AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY")  # the tests' nodes have no credentials
        s3fs.S3FileSystem.clear_instance_cache()  # file systems keep the endpoint they were created with
        try:
            yield f"s3://{bucket}/{prefix}"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
