"""Names the file of an annotator's model, so that a run can check the file before any task needs it."""

from __future__ import annotations

from typing import NamedTuple


class ModelFile(NamedTuple):
    """The path of a model, and the sha256 that its file must have: 64 hex digits in lower case."""

    path: str
    sha256: str
