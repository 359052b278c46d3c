"""Keys are found in the forms of their issuers, and nothing that only begins like one."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

import pytest

from datakit.annotate.personal.keys import LONGEST
from tests.support.annotate.personal_items import (
    Item,
    aws_key,
    github_token,
    google_key,
    jwt,
    private_key,
    slack_token,
    stripe_key,
)
from tests.support.annotate.planting import found_in

MAKERS = (aws_key, github_token, google_key, jwt, private_key, slack_token, stripe_key)
KINDS = tuple(maker.__name__ for maker in MAKERS)


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
@pytest.mark.parametrize("around", [("", ""), ("鍵", "。"), ("'", "'"), ("x=", "\n")])
def test_keys_are_found_whole(make: Callable[[random.Random], Item], around: tuple[str, str]) -> None:
    for seed in range(20):
        key = str(make(random.Random(seed)))
        assert found_in(f"{around[0]}{key}{around[1]}", *KINDS) == [(make.__name__, key)]


@pytest.mark.parametrize("make", [maker for maker in MAKERS if maker is not private_key])
def test_keys_must_not_touch_what_could_belong_to_them(make: Callable[[random.Random], Item]) -> None:
    key = str(make(random.Random(3)))
    assert found_in(f"x{key}", *KINDS) == []
    assert found_in(f"{key[:-12]}", "aws_key", "google_key", "github_token") == []


def coded(value: object) -> str:
    """Return a part of a JWT."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "AKIA" + "a" * 16,
        "xoxb-not-a-token-at-all",
        "sk_live_short",
        "pk_live_" + "a1" * 20,
        f"{coded({'a': 1})}.{coded({'b': 2})}.{'x' * 20}",
        f"{coded({'alg': 1})}.{'eyJ' + 'x' * 20}.{'x' * 20}",
        f"{coded({'alg': 1})}.{coded({'b': 2})}",
        "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n" + "a" * 100,
        "-----BEGIN PRIVATE KEY-----\n" + "a" * 100 + "\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PUBLIC KEY-----\n" + "a" * 100 + "\n-----END PUBLIC KEY-----",
        "-----BEGIN PRIVATE KEY-----\n" + "a" * LONGEST + "\n-----END PRIVATE KEY-----",
        "eyJ" + "x" * 2 * LONGEST,
    ],
)
def test_what_only_begins_like_a_key_is_not_found(text: str) -> None:
    assert found_in(text, *KINDS) == []
