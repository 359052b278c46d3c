"""Sources in memory check what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.errors import LoaderError
from datakit.loader import ArraySource


def test_mismatched_lengths_and_masks_are_refused() -> None:
    with pytest.raises(LoaderError, match="number of tokens, 10; their sum is 9"):
        ArraySource(np.arange(10), [4, 5])
    with pytest.raises(LoaderError, match="loss mask has 3 entries"):
        ArraySource(np.arange(10), [10], np.ones(3))
