"""Loads or compiles the kernels of decontamination, so that tasks do not have to."""

from __future__ import annotations

import pyarrow as pa

from datakit.annotate.annotator import TEXT
from datakit.annotate.contamination.annotator import ContaminationAnnotator
from datakit.annotate.contamination.evaluation_sets import EvaluationSet, Passages
from datakit.annotate.contamination.index_file import IndexRules, built_index


def warm() -> None:
    """Load the kernels from numba's disk cache, or compile them, which takes 20 to 60 seconds."""
    texts, items = pa.array(["eins zwei drei", "vier fünf"], pa.large_string()), pa.array([0, 1], pa.int64())
    rules = IndexRules(ngram=3, min_words=2, min_characters=0)
    index = built_index(Passages(texts, items, (0, 2)), rules)
    sets = [EvaluationSet("warm", "warm.jsonl")]
    ContaminationAnnotator(sets, [[]], rules, 1, index).annotate(pa.record_batch({TEXT: texts}))
