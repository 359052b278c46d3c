"""Decisions follow from hits and thresholds alone; the strongest decision of a document wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.contamination.annotator import HITS
from datakit.annotate.contamination.decisions import CUT, DROP, KEEP, MARK, Threshold, Thresholds, decide
from datakit.errors import ColumnError
from tests.support.annotate.contamination_oracle import merged

SPAN = st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda span: (span[0], span[0] + span[1]))
HIT = st.builds(
    lambda matches, more, spans: {
        "set": "one", "item": 0, "matches": matches, "ngrams": matches + more,
        "overlap": matches / (matches + more), "spans": merged(spans),
    },
    st.integers(1, 9), st.integers(0, 9), st.lists(SPAN, min_size=1, max_size=4),
)  # fmt: skip
DOCUMENTS = st.lists(st.none() | st.lists(HIT, max_size=4), max_size=8)
THRESHOLD = st.none() | st.builds(Threshold, st.sampled_from([0.0, 0.5, 0.9]), st.integers(1, 6))


def reaches(hit: dict[str, Any], threshold: Threshold | None) -> bool:
    return threshold is not None and hit["overlap"] >= threshold.overlap and hit["matches"] >= threshold.matches


@given(documents=DOCUMENTS, thresholds=st.builds(Thresholds, THRESHOLD, THRESHOLD, THRESHOLD), skipped=st.booleans())
def test_decisions_are_those_of_a_loop(
    documents: list[list[dict[str, Any]] | None], thresholds: Thresholds, skipped: bool
) -> None:
    array = pa.array([[], *documents], HITS)
    decisions = decide(array[1:] if skipped else array, thresholds)
    documents = documents if skipped else [[], *documents]
    for document, decision, spans in zip(documents, decisions.decision, decisions.spans.to_pylist(), strict=True):
        hits = document or []
        values = [(DROP, thresholds.drop), (CUT, thresholds.cut), (MARK, thresholds.mark)]
        wanted = next((value for value, one in values if any(reaches(hit, one) for hit in hits)), KEEP)
        cut = [(s["start"], s["stop"]) for hit in hits if reaches(hit, thresholds.cut) for s in hit["spans"]]
        assert decision == wanted
        assert spans == (merged(cut) if wanted == CUT else [])


def test_no_documents_give_no_decisions() -> None:
    decisions = decide(pa.array([], HITS), Thresholds())
    assert decisions.decision.dtype == np.uint8
    assert len(decisions.decision) == len(decisions.spans) == 0


def test_other_columns_are_refused() -> None:
    with pytest.raises(ColumnError, match="give the column `hits`"):
        decide(pa.array([1]), Thresholds())


@pytest.mark.parametrize(("overlap", "matches"), [(-0.1, 1), (1.1, 1), (0.5, 0)])
def test_impossible_thresholds_are_refused(overlap: float, matches: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Threshold(overlap, matches)
