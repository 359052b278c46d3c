"""IBANs have the length of their country and valid check digits."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.annotate.personal.ibans import LENGTHS
from tests.support.annotate.personal_items import iban
from tests.support.annotate.planting import found_in


def valid(number: str) -> bool:
    """Return True for a valid IBAN without spaces."""
    rearranged = number[4:] + number[:4]
    digits = "".join(str(int(character, 36)) for character in rearranged)
    return len(number) == LENGTHS.get(number[:2], 0) and int(digits) % 97 == 1 and 2 <= int(number[2:4]) <= 98


@pytest.mark.parametrize("seed", range(100))
def test_made_ibans_are_valid_and_found(seed: int) -> None:
    number = iban(random.Random(seed))
    assert isinstance(number, str)
    assert valid(number.replace(" ", ""))
    assert found_in(f"IBAN: {number}.", "iban") == [("iban", number)]


@given(st.integers(0, 99), st.sampled_from(["0", "9", "A", "Z", "漢", ""]), st.integers(4, 30))
@settings(max_examples=300)
def test_changed_ibans_match_plain_python(seed: int, new: str, place: int) -> None:
    number = str(iban(random.Random(seed))).replace(" ", "")
    place = min(place, len(number) - 1)
    changed = number[:place] + new + number[place + 1 :]
    expected = [("iban", changed)] if re.fullmatch("[A-Z0-9]+", changed) and valid(changed) else []
    assert found_in(changed, "iban") == expected


@pytest.mark.parametrize(
    "text", ["xDE89370400440532013000", "DE893704004405320130001", "DE89370400440532013001", "de89370400440532013000"]
)
def test_what_only_looks_like_an_iban_is_not_found(text: str) -> None:
    assert found_in(text, "iban") == []
