"""Lists the versions (of Python, datakit and libraries) that can change output bytes and must agree on all nodes."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

LIBRARIES = (
    "datakit", "pyarrow", "numpy", "numba", "duckdb", "tokenizers", "fastokens", "tensorstore", "xxhash", "zstandard",
)  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries. If datakit is not installed, its version is
    "a source tree".
    """
    found = {"python": platform.python_version(), "datakit": "a source tree"}
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def comparable_versions() -> dict[str, str]:
    """Return the versions that must agree on all nodes. Python's patch level is left out: it cannot change outputs."""
    return versions() | {"python": ".".join(platform.python_version_tuple()[:2])}
