"""Detects when numba is compiling kernels, which takes 10 to 60 seconds on a machine that has not run them yet, and
compiles kernels in two processes at the same time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOTICE = "compiling kernels, which takes 10 to 60 s the first time on a machine"


def load_numba() -> None:
    """Load what every kernel needs (numba and LLVM), so that the forks of this process share it. This takes 0.4 to 0.7
    s of CPU time. After that, loading a kernel from disk takes 5 ms.
    """
    with _hidden("scipy"):  # numba would import it to check its version
        from numba.core.registry import cpu_target

        # numba would call this when it loads the first kernel
        cpu_target.target_context.refresh()  # pyright: ignore[reportAttributeAccessIssue] - a cached property


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Make the import of a module fail inside the `with` block, unless the module has already been imported."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # pyright: ignore[reportArgumentType] - makes the import fail, as documented
    try:
        yield
    finally:
        del sys.modules[module]


@contextmanager
def announced(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` once, when numba first compiles a kernel in the `with` block. Loading a kernel from disk does not
    count. The modules with the kernels must already be imported. If none of them has imported numba, this function does
    not import it either.
    """
    if "numba" not in sys.modules:
        yield
        return
    from numba.core import event

    waiting = [callback]

    class Listener(event.Listener):
        def on_start(self, event: object) -> None:
            while waiting:
                waiting.pop()()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


def is_cached(kernel: Any) -> bool:
    """Return True if numba's disk cache has any code of a kernel. The code may be outdated."""
    return Path(kernel._cache._cache_file._index_path).exists()


@contextmanager
def compiled_beside(warm: Callable[[], None], kernel: Any) -> Iterator[None]:
    """If `kernel` is not in numba's disk cache, call `warm`, which compiles it, in a fork of this process while the
    `with` block runs. After the block, the kernel can be loaded from the cache; if the fork has failed, it still has to
    be compiled. This process must have no other threads.
    """
    if is_cached(kernel):
        yield
        return
    child = os.fork()
    if child == 0:
        try:
            warm()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.waitpid(child, 0)
