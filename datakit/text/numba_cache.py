"""Provides `cached_njit`, which compiles a numba kernel and caches it on disk until any module used by the kernel
changes.

numba's disk cache notices changes in the file that defines a kernel, but not changes in other files whose functions and
constants are compiled into the kernel. numba also fails to load a cached kernel if a NamedTuple among the kernel's
arguments has moved to another module. Cache files are named after the kernel's qualified name, so the decorator appends
a hash of the other modules' names and sources to that name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import xxhash
from numba import njit

Decorator: TypeAlias = Callable[[Callable[..., Any]], Any]


def cached_njit(*modules: ModuleType) -> Decorator:
    """Return an `njit` decorator with a disk cache that is valid only for the current source files of `modules`.
    `modules` must contain all other modules whose functions, constants or types the kernel uses in any way, including
    the types of its arguments.
    """
    sources = b"".join(module.__name__.encode() + Path(str(module.__file__)).read_bytes() for module in modules)
    version = xxhash.xxh3_64_hexdigest(sources)

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ = f"{function.__qualname__}_{version}"
        return njit(cache=True, nogil=True)(function)

    return decorate
