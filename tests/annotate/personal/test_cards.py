"""Card numbers have a known prefix, a length that belongs to it, and Luhn's digit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.annotate.personal_items import card, luhn
from tests.support.annotate.planting import found_in


def issued(number: str) -> bool:
    """Return True if a network issues such numbers."""
    four, size = int(number[:4]), len(number)
    return (
        (number[0] == "4" and size in (13, 16, 19))
        or (number[:2] in ("34", "37") and size == 15)
        or ((300 <= four // 10 <= 305 or number[:2] in ("36", "38", "39")) and size == 14)
        or ((51 <= four // 100 <= 55 or 2221 <= four <= 2720) and size == 16)
        or (
            (3528 <= four <= 3589 or four == 6011 or 644 <= four // 10 <= 649 or number[:2] in ("62", "65"))
            and 16 <= size <= 19
        )
    )


@given(st.integers(1000, 9999), st.integers(8, 15), st.integers(0, 10**15 - 1), st.booleans())
@settings(max_examples=500)
def test_card_numbers_match_plain_python(prefix: int, size: int, tail: int, valid: bool) -> None:
    body = f"{prefix}{tail:015}"[: size + 3]
    right = luhn(body)
    number = right if valid else right[:-1] + str((int(right[-1]) + 1) % 10)
    assert bool(found_in(f"x {number}.", "card")) == (valid and issued(number))


@pytest.mark.parametrize("seed", range(50))
def test_changing_one_digit_makes_a_card_invalid(seed: int) -> None:
    chance = random.Random(seed)
    number = card(chance)
    assert isinstance(number, str)
    assert found_in(number, "card") == [("card", number)]
    place = chance.choice([i for i, character in enumerate(number) if character.isdigit() and i > 6])
    changed = number[:place] + str((int(number[place]) + chance.randint(1, 8)) % 10) + number[place + 1 :]
    assert found_in(changed, "card") == ([] if changed != number else [("card", number)])


@pytest.mark.parametrize(
    "text",
    [
        "0.4111111111111111",
        "x4111111111111111",
        "41111111111111110",
        "4111-1111 1111-1111",
        "41 1111 1111 1111 11",
        "4111 1111 1111 1111.5",
        "4111111111111111e",
    ],
)
def test_other_numbers_are_not_cards(text: str) -> None:
    assert found_in(text, "card") == []


def test_what_follows_a_card_does_not_hide_it() -> None:
    assert found_in("4111 1111 1111 1111 12/25") == [("card", "4111 1111 1111 1111")]
