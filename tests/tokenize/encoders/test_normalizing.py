"""Tests of normalizing long texts in pieces."""

from __future__ import annotations

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.tokenize.encoders.normalizing import normalized
from tests.support.tokens.bpe_tokenizers import NORMALIZERS, TEXTS


@settings(max_examples=150)
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | TEXTS, size=st.integers(1, 9))
def test_pieces_normalize_to_the_normalized_text(text: str, size: int) -> None:
    """Pieces of `size` instead of PIECE_CHARACTERS."""
    for form in NORMALIZERS[1:]:
        normalize = getattr(tokenizers.normalizers, form or "")().normalize_str
        assert normalized(text, normalize, size) == normalize(text)
