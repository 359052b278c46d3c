"""Secrets of unknown form are values that look random and are assigned to a name that says so."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit.annotate.personal.secrets_in_code import entropy
from tests.support.annotate.planting import found_in

VALUE = "a8Gf5Kq2zX9pLw7Rt3Vb"


@pytest.mark.parametrize(
    "text",
    [
        'api_key = "{}"',
        "apiKey: '{}'",
        '"client_secret": "{}",',
        "AWS_SECRET_ACCESS_KEY={}\n",
        "export AUTH_TOKEN={}",
        '$config["password"] = "{}";',
        "db_passwd := `{}`",
        "'token' => '{}'",
        "x.storage-key=='{}'",
        "?access_token={}&a=b",
    ],
)
def test_assigned_values_are_found_without_name_and_quotes(text: str) -> None:
    assert found_in(text.format(VALUE), "secret") == [("secret", VALUE)]


@pytest.mark.parametrize(
    "text",
    [
        f'name = "{VALUE}"',
        f'monkey = "{VALUE}"',
        f"key = '{VALUE}'",
        f'token = "{VALUE}',
        f"token = {VALUE}(1)",
        f"token = '{VALUE}\"",
        "token = tokenizer_from_pretrained_model",
        'token = "aaaaaaaaaaaaaaaaaaaaaaaa1"',
        'token = "abcdefghijklmnopqrstuvwx"',
        'token = "a8Gf5Kq2zX9pLw7"',
        f'token = "{VALUE * 7}"',
        "token: ",
        ":" + VALUE,
        f"= '{VALUE}'",
    ],
)
def test_other_values_are_not_secrets(text: str) -> None:
    assert found_in(text, "secret") == []


@given(st.binary(min_size=1, max_size=100))
def test_entropy_matches_its_definition(value: bytes) -> None:
    shares = [value.count(byte) / len(value) for byte in set(value)]
    assert entropy(value) == pytest.approx(sum(share * math.log2(1 / share) for share in shares))
