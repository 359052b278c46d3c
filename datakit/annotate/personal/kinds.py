"""Lists the kinds of personal data, with their codes in the kernels.

Codes are in alphabetical order of the names, so ordering by code is ordering by name. Numbers and addresses that no
person can own (documentation, private networks) have kinds of their own, whose names end in `_reserved`.
"""

from __future__ import annotations

from collections.abc import Iterable

from datakit.errors import RecipeError, suggestion

KINDS = (
    "aws_key",
    "card",
    "email",
    "email_reserved",
    "github_token",
    "google_key",
    "iban",
    "ipv4",
    "ipv4_reserved",
    "ipv6",
    "ipv6_reserved",
    "jwt",
    "phone",
    "private_key",
    "secret",
    "slack_token",
    "stripe_key",
)
(
    AWS_KEY,
    CARD,
    EMAIL,
    EMAIL_RESERVED,
    GITHUB_TOKEN,
    GOOGLE_KEY,
    IBAN,
    IPV4,
    IPV4_RESERVED,
    IPV6,
    IPV6_RESERVED,
    JWT,
    PHONE,
    PRIVATE_KEY,
    SECRET,
    SLACK_TOKEN,
    STRIPE_KEY,
) = range(len(KINDS))


def check_kinds(name: str, kinds: Iterable[str], known: Iterable[str] = KINDS) -> None:
    """Raise RecipeError, which names the setting, if it holds an unknown kind or one kind twice."""
    seen: set[str] = set()
    for kind in kinds:
        if kind not in known:
            raise RecipeError(f"{name}: unknown kind {kind!r}; {suggestion(kind, known)}")
        if kind in seen:
            raise RecipeError(f"{name}: {kind!r} is listed twice; remove one of them")
        seen.add(kind)
