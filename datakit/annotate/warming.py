"""Prepares annotators for use, so that the processes forked afterwards share their kernels and models."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from datakit.annotate.annotator import TEXT, Annotator

T = TypeVar("T", bound=Annotator)


def warmed(annotator: T) -> T:
    """Annotate one short document, which loads the annotator's kernels or compiles them, and return the annotator."""
    annotator.annotate(pa.record_batch({TEXT: pa.array(["a word, ein Wörtchen, 一語"], pa.large_string())}))
    return annotator
