"""Measure the mixture loader on object storage: tokens per second from an S3 server that delays each read.

    python -m benchmarks.loader_s3 [--latency-ms 50] [--tokens 134217728] [--memory 268435456] [--in-flight 4]

The server is moto in a process of its own, with every GET delayed. Its own speed (one Python process) is part of the
result, so this is a lower bound. The memory printed is the loader's budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import s3fs

from benchmarks.loader import LENGTH, ROWS, synthetic_cache
from datakit.loader import Component, Loader, Mixture, open_source

SERVER = """
import logging, sys, threading, time
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
application, seconds = DomainDispatcherApplication(create_backend_app), float(sys.argv[1]) / 1000

def delayed(environ, start_response):
    if environ["REQUEST_METHOD"] == "GET":
        time.sleep(seconds)
    return application(environ, start_response)

server = make_server("127.0.0.1", 0, delayed, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""
BUCKET = "datakit-bench"


@contextmanager
def slow_s3(latency_ms: float) -> Iterator[str]:
    """Serve `s3://bucket` with delayed GETs; AWS_* point to it in the meantime."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(latency_ms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{process.stdout.readline().strip()}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        process.kill()
        process.communicate(timeout=10)


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Read one epoch from S3 and return the results."""
    with tempfile.TemporaryDirectory(dir=options.scratch) as directory, slow_s3(options.latency_ms) as root:
        cache = synthetic_cache(Path(directory), options.tokens, options.dtype)
        s3fs.S3FileSystem().put(cache, f"{root}/cache", recursive=True)
        component = Component(open_source(f"{root}/cache"))
        mixture = Mixture({"web": component}, {"web": 1.0}, batch_size=ROWS, memory_bytes=options.memory)
        with Loader(mixture, in_flight=options.in_flight) as loader:
            steps, begun, first = options.tokens // LENGTH // ROWS, time.perf_counter(), 0.0
            for batch in loader.iterate(0, steps):
                first = first or time.perf_counter() - begun
                del batch
            seconds = time.perf_counter() - begun
            found = loader.metrics.snapshot()
    return {
        "latency_ms": options.latency_ms,
        "memory_bytes": options.memory,
        "in_flight": options.in_flight,
        "million tokens/s": round(found["tokens"] / seconds / 1e6, 1),
        "first batch, s": round(first, 2),
        "reads": found["reads"],
        "hit_rate": round(found["hit_rate"], 3),
    }


def main() -> None:
    """Parse arguments, run, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--tokens", type=int, default=1 << 27)
    parser.add_argument("--dtype", choices=("uint16", "uint32"), default="uint16")
    parser.add_argument("--memory", type=int, default=1 << 28)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--scratch", default=None)
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
