"""Modules that no process may import: each writes a file when it is imported.

imported = plant(folder)        # folder/selectors.py, folder/datakit.py, ...
...
assert imported() == []
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

LIBRARIES = (
    "datakit", "pyarrow", "numpy", "numba", "msgspec", "xxhash", "tokenizers", "fastokens", "duckdb", "fsspec", "s3fs",
    "tensorstore", "zstandard", "psutil", "orjson", "ray", "sitecustomize", "usercustomize", "numba_cache", "__main__",
)  # fmt: skip
MODULE = """
import os
os.close(os.open({place!r} + "/" + __name__ + "." + str(os.getpid()), os.O_CREAT | os.O_WRONLY))
raise ImportError("imported from the working directory")
"""


def plant(folder: Path) -> Callable[[], list[str]]:
    """Write a hostile module for every name of the standard library and of our libraries into the folder; return a
    function that lists those that have been imported since.
    """
    canaries = folder.with_name(f"{folder.name}-canaries")
    folder.mkdir(exist_ok=True)
    canaries.mkdir()
    for name in (*sys.stdlib_module_names, *LIBRARIES):
        (folder / f"{name}.py").write_text(MODULE.format(place=str(canaries)))
    return lambda: sorted(path.name for path in canaries.iterdir())
