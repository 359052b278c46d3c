"""Telephone numbers count only if their form says what they are."""

from __future__ import annotations

import random

import pytest

from datakit.annotate.personal.calling_codes import calling_codes
from tests.support.annotate.personal_items import PHONES, filled
from tests.support.annotate.planting import found_in

NOT_COVERED = 3  # the last forms


@pytest.mark.parametrize("form", PHONES[:-NOT_COVERED])
@pytest.mark.parametrize("around", [("", ""), ("電話 ", "です"), ("(", ")"), ("Call ", ", or")])
def test_common_forms_are_found(form: str | tuple[str, str, str], around: tuple[str, str]) -> None:
    for seed in range(10):
        before, number_form, after = form if isinstance(form, tuple) else ("", form, "")
        number = filled(random.Random(seed), number_form)
        text = f"{around[0]}{before}{number}{after}{around[1]}"
        assert found_in(text, "phone") == [("phone", number)]


@pytest.mark.parametrize("form", PHONES[-NOT_COVERED:])
def test_numbers_without_any_sign_of_a_telephone_are_not_found(form: str) -> None:
    assert found_in(f"call {filled(random.Random(1), form)} now", "phone") == []


@pytest.mark.parametrize(
    "text",
    [
        "2004-01-02 12:33:00",
        "978-3-16-148410-0",
        "01 00 00 00 01 00 00 00",
        "3.141.592.6535",
        "hotel 1234567",
        "112-555-0123",
        "212-155-0123",
        "911-555-0123",
        "a212-555-0123",
        "212-555-01234",
        "212-555-0123-4",
        "id=212-555-0123",
        "212-555-0123@x",
        "+999 30 1234567",
        "x+49301234567",
        "+49 30 12",
        "01/02/2003",
        "1 000 000 000",
        "0123-456789-abc",
        "10.1234/212.555.0123.4",
        "+",
        "+(",
        "(0",
    ],
)
def test_dates_books_and_other_numbers_are_not_telephone_numbers(text: str) -> None:
    assert found_in(text, "phone") == []


def test_no_calling_code_begins_with_another() -> None:
    codes = calling_codes()
    assert not [code for code in codes for size in range(1, len(code)) if code[:size] in codes]
