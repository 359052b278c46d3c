"""A preload that writes its process's import path to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def write(file: str) -> None:
    """Write the import path as JSON."""
    Path(file).write_text(json.dumps(sys.path))
