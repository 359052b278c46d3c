"""Knows the special tokens of a tokenizer, their strings and ids, and checks that no other text has become one of them.

The id for unknown characters is not counted: it stands for any text, and no template uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.templates.marks import Span
from datakit.tokenize.templates.special_strings import SpecialStrings


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens. numbers: the id of each string. table: bool [V], True for the ids that are counted."""

    strings: SpecialStrings
    numbers: dict[str, int]
    table: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> SpecialTokens:
        """Return the special tokens of a tokenizer."""
        found = {token: tokenizer.token_id(token) for token in tokenizer.special_tokens if token}
        numbers = {token: number for token, number in found.items() if number is not None}
        table = np.zeros(tokenizer.vocabulary_size, bool)
        table[[number for token, number in numbers.items() if token != unknown_token(tokenizer)]] = True
        return cls(SpecialStrings(numbers), numbers, table)

    def all_in(self, ids: np.ndarray, text: str, quoted: list[Span]) -> bool:
        """Return True if the special tokens among the ids of a text occur in it as strings, in the same order, outside
        of the spans that are ordinary text.
        """
        found = ids[self.table[ids]].tolist()
        if not found:
            return True
        written = iter(self._written(text, quoted))
        return all(number in written for number in found)

    def _written(self, text: str, quoted: list[Span]) -> list[int]:
        ends = [0, *(place for span in quoted for place in span), len(text)]
        outside = [text[start:stop] for start, stop in zip(ends[::2], ends[1::2], strict=True)]
        places = ((part, span) for part in outside for span in self.strings.places(part))
        return [self.numbers[part[start:stop]] for part, (start, stop) in places]


def unknown_token(tokenizer: Tokenizer) -> str | None:
    """Return the token that stands for unknown characters; None if there is none."""
    model = tokenizer.definition.get("model", {})
    if isinstance(model.get("unk_id"), int) and isinstance(model.get("vocab"), list):
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")
