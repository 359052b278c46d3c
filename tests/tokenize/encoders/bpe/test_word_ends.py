"""Tests that texts are split into the words that the reference's regular expressions match."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from datakit.tokenize.encoders.bpe.character_tables import character_classes
from datakit.tokenize.encoders.bpe.memory_access import address_of
from datakit.tokenize.encoders.bpe.word_ends import ANY_NUMBER, UNDECIDED, cl100k_end, gpt2_end
from datakit.tokenize.encoders.safe_cuts import CL100K_KIND, GPT2
from tests.support.tokens.bpe_tokenizers import TEXTS

PIECES = st.sampled_from(
    [*"'sStTdDmMlLvVeErR", "'ll", "'RE", "\r\n", " \n ", "\t\n", "ſ", "12", "½", "\u00a0", "，", "x"]
)
EXPRESSIONS = [GPT2, *sorted(CL100K_KIND)]


def words(text: str, expression: str) -> list[str] | None:
    """The words of a text; None if the kernels leave it."""
    data = np.frombuffer(text.encode(), np.uint8)
    digits = 3 if "{1,3}" in expression else 1 if r"\p{N}|" in expression and r"\p{N}+|" not in expression else 0
    place, classes, size = (
        np.uint64(number) for number in (address_of(data), address_of(character_classes()), len(data))
    )
    found, at = [], np.uint64(0)
    while at < size:
        if expression == GPT2:
            end = gpt2_end(place, at, size, classes, size)
        else:
            end = cl100k_end(place, at, size, classes, size, np.uint64(digits) if digits else ANY_NUMBER)
        if end == UNDECIDED:
            return None
        found.append(data[at:end].tobytes().decode())
        at = np.uint64(end)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(text=TEXTS | st.lists(PIECES, max_size=30).map("".join) | st.text())
@example(text="it's we'll THEY'VE 'S 'sa ''s  x\n\n  y \r\n\t1234567 ٣٣٣٣ a\u0301b½² ...\n\n!?\r\nend   ")
@example(text="the quick brown foxes jumped överalltochingenstans over")
def test_words_are_those_that_the_reference_matches(expression: str, text: str) -> None:
    found = words(text, expression)
    if found is None:
        assert "'ſ" in text
        assert expression != GPT2
    else:
        assert found == [piece for piece, _ in Split(Regex(expression), "isolated").pre_tokenize_str(text)]
