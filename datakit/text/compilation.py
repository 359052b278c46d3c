"""Detects when numba is compiling kernels, which takes 10 to 60 seconds on a machine that has not run them yet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
