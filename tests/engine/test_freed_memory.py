"""A process that keeps freed memory does not ask the kernel for new memory for every large allocation."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

ROUNDS = 50
SCRIPT = f"""
import resource, sys, threading
from datakit.engine import freed_memory
call, size, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if call:
    getattr(freed_memory, call)()

def work():
    for _ in range({ROUNDS}):
        bytes(bytearray(size))

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if threads:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
@pytest.mark.parametrize(
    ("call", "size", "threads"), [("keep_freed_memory", 8 << 20, 0), ("keep_all_freed_memory", 100 << 20, 1)]
)
def test_freed_memory_is_used_again(call: str, size: int, threads: int) -> None:
    def faults(call: str) -> int:
        command = [sys.executable, "-c", SCRIPT, call, str(size), str(threads)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults(call) * 5 < faults("")
