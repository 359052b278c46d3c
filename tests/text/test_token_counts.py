from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.text.token_counts import add_counts

VOCABULARY = 40


@given(st.lists(st.lists(st.integers(0, VOCABULARY - 1))), st.sampled_from([np.uint16, np.uint32]))
def test_every_token_is_counted(batches: list[list[int]], dtype: type) -> None:
    counts = np.zeros(VOCABULARY, np.int64)
    for batch in batches:
        add_counts(counts, np.array(batch, dtype))
    together = np.array([token for batch in batches for token in batch], np.int64)
    assert counts.tolist() == np.bincount(together, minlength=VOCABULARY).tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_a_token_outside_the_vocabulary_is_refused(dtype: type) -> None:
    with pytest.raises(IndexError):
        add_counts(np.zeros(VOCABULARY, np.int64), np.array([VOCABULARY], dtype))
