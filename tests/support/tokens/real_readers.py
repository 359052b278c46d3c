"""Reads exports with the libraries of other programs, which are too heavy for this project's own environment.

Such a library is installed in an environment of its own, and an environment variable names that environment's Python:

    python -m venv /tmp/streaming && /tmp/streaming/bin/pip install mosaicml-streaming
    DATAKIT_READER_STREAMING=/tmp/streaming/bin/python python -m pytest tests/interop

Without the variable, the tests of that library are skipped with this hint.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Reader:
    """A library that reads an export. packages: what to install. program: reads the export at `sys.argv[1]`, and prints
    what it finds as JSON in its last line.
    """

    library: str
    packages: str
    program: str

    @property
    def variable(self) -> str:
        """The environment variable that names the Python in which the library is installed."""
        return f"DATAKIT_READER_{self.library.upper()}"

    def require(self) -> str:
        """Return the Python in which the library is installed. Skips the test if there is none."""
        python = os.environ.get(self.variable)
        if not python:
            pytest.skip(f"{self.variable} names no Python with {self.packages}")
        return python

    def read(self, place: Path | str) -> Any:
        """Return what the library finds at a place. Skips the test if the library is not installed."""
        found = subprocess.run(
            [self.require(), "-c", self.program, str(place)], capture_output=True, text=True, timeout=300, check=False
        )
        assert found.returncode == 0, found.stderr[-3000:]
        return json.loads(found.stdout.splitlines()[-1])


STREAMING = Reader(
    "streaming",
    "mosaicml-streaming, and a torchvision that was built for its torch",
    """
import json, sys, tempfile
from streaming import StreamingDataset
found = StreamingDataset(local=sys.argv[1], shuffle=False, batch_size=1)
rows = [found[row] for row in range(len(found))]
plain = [{name: value if isinstance(value, str) else value.tolist() for name, value in row.items()} for row in rows]
print(json.dumps(plain))
""",
)
LEVANTER = Reader(
    "levanter",
    "levanter, gitpython and chex",
    """
import json, sys
import numpy as np
from levanter.store.cache import TreeCache
found = TreeCache.load(sys.argv[1], {"input_ids": np.zeros((0,), np.int32)})
rows = found.get_batch_sync(slice(0, len(found))) if len(found) else []
print(json.dumps([np.asarray(row["input_ids"]).tolist() for row in rows]))
""",
)
MEGATRON = Reader(
    "megatron",
    "megatron-core and torch",
    """
import json, sys
from megatron.core.datasets.indexed_dataset import IndexedDataset
found = IndexedDataset(sys.argv[1])
borders = [int(border) for border in found.document_indices]
print(json.dumps([[found[row].tolist() for row in range(len(found))], borders]))
""",
)
